"""The behavior of EnvPool that ProxRL relies on, tested with EnvPool itself."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from proxrl.build import build_environments
from proxrl.config import Config
from proxrl.envs import envpool
from proxrl.envs.envpool import EnvPoolEnvs, task_name
from proxrl.errors import ProxRLError
from proxrl.types import Step
from proxrl.world.solo import Solo

pytest.importorskip("envpool")


def random_action(pool: EnvPoolEnvs, rng: np.random.Generator) -> np.ndarray:
    if pool.action_space.shape:
        return rng.uniform(-1, 1, (pool.num_envs, *pool.action_space.shape)).astype(np.float32)
    return rng.integers(0, pool.action_space.n, pool.num_envs)


def run(pool: EnvPoolEnvs, steps: int, seed: int = 0) -> list[Step]:
    rng = np.random.default_rng(0)
    pool.reset(seed)
    return [pool.step(random_action(pool, rng)) for _ in range(steps)]


@pytest.mark.parametrize(
    ("task", "limit"),
    [("CartPole-v1", 15), ("Pendulum-v1", 12), ("HalfCheetah-v5", 9), ("CheetahRun-v1", 9), ("LunarLander-v3", 75)],
)
def test_exactly_the_step_after_the_end_of_an_episode_is_a_dummy_step(task: str, limit: int) -> None:
    pool = EnvPoolEnvs(task, 3, max_episode_steps=limit)
    ended, length, total = np.zeros(3, np.bool_), np.zeros(3, np.int64), np.zeros(3)
    finished = 0
    for step in run(pool, 160):
        np.testing.assert_array_equal(step.valid, ~ended)
        assert (step.reward[ended] == 0).all()
        assert not (step.terminated[ended] | step.truncated[ended]).any()
        length += step.valid
        total += step.reward
        ended = step.terminated | step.truncated
        np.testing.assert_array_equal(step.truncated, length == limit)
        assert [episode.env for episode in step.episodes] == np.flatnonzero(ended).tolist()
        for episode in step.episodes:
            assert episode.length == length[episode.env]
            assert episode.total_reward == pytest.approx(total[episode.env])
        length[ended] = total[ended] = 0
        finished += len(step.episodes)
        assert step.obs.dtype == np.float32
    assert finished >= 6
    assert pool.episode_counts.sum() == 3 + finished - ended.sum()


def test_the_last_step_returns_the_last_observation_of_its_episode() -> None:
    for step in run(EnvPoolEnvs("CartPole-v1", 4), 200):
        fallen = (np.abs(step.obs[:, 0]) > 2.4) | (np.abs(step.obs[:, 2]) > 12 * np.pi / 180)
        np.testing.assert_array_equal(fallen, step.terminated)
        assert (np.abs(step.obs[~step.valid]) <= 0.05).all()


@pytest.mark.parametrize("task", ["CartPole-v1", "HalfCheetah-v5", "Pendulum-v1"])
def test_the_action_of_a_dummy_step_is_ignored(task: str) -> None:
    pools = [EnvPoolEnvs(task, 2, max_episode_steps=5) for _ in range(2)]
    for pool in pools:
        pool.reset(0)
    rng = np.random.default_rng(0)
    valid = np.ones(2, np.bool_)
    for _ in range(40):
        one, other = random_action(pools[0], rng), random_action(pools[0], rng)
        other[valid] = one[valid]
        ours, theirs = pools[0].step(one), pools[1].step(other)
        np.testing.assert_array_equal(ours.obs, theirs.obs)
        np.testing.assert_array_equal(ours.reward, theirs.reward)
        valid = ~(ours.terminated | ours.truncated)


def test_a_termination_on_the_last_step_is_reported_as_truncated() -> None:
    """docs/environments.md describes this limitation of EnvPool; if this test fails, EnvPool has changed."""
    pool = EnvPoolEnvs("CartPole-v1", 1)
    pool.reset(3)
    length = next(t for t in range(1, 99) if pool.step(np.ones(1, np.int64)).terminated[0])
    limited = EnvPoolEnvs("CartPole-v1", 1, max_episode_steps=length)
    limited.reset(3)
    for _ in range(length):
        step = limited.step(np.ones(1, np.int64))
    assert (step.terminated[0], step.truncated[0]) == (False, True)


def test_seeds_depend_on_the_environment_and_the_episode_count() -> None:
    pool, upper = EnvPoolEnvs("CartPole-v1", 4), EnvPoolEnvs("CartPole-v1", 2, first_env=2)
    first = pool.reset(0).copy()
    np.testing.assert_array_equal(pool.reset(0), first)
    np.testing.assert_array_equal(upper.reset(0), first[2:])
    resumed = pool.reset(0, [1, 1, 0, 0]).copy()
    np.testing.assert_array_equal(resumed[2:], first[2:])
    assert pool.episode_counts.tolist() == [2, 2, 1, 1]
    rows = {tuple(row) for obs in (first, resumed[:2], pool.reset(1)) for row in obs.tolist()}
    assert len(rows) == 10


def test_dm_control_names_and_flat_observations() -> None:
    assert task_name("dm_control/cheetah-run-v0") == "CheetahRun-v1"
    assert task_name("dm_control/ball_in_cup-catch-v0") == "BallInCupCatch-v1"
    assert task_name("dm_control/humanoid_CMU-run-v0") == "HumanoidCMURun-v1"
    assert task_name("CheetahRun-v1") == "CheetahRun-v1"
    pool = EnvPoolEnvs("dm_control/cheetah-run-v0", 2)
    assert pool.observation_space.shape == (17,)
    obs = pool.reset(0)
    raw, _ = pool._pool.reset()
    np.testing.assert_array_equal(
        pool._stored(raw), np.concatenate([raw["position"], raw["velocity"]], axis=1).astype(np.float32)
    )
    assert obs.shape == (2, 17)
    assert obs.dtype == np.float32


def test_every_dm_control_task_has_flat_observations() -> None:
    tasks = [task for task in envpool.task_packages() if envpool.is_dm_control(task)]
    assert len(tasks) > 40
    for task in tasks:
        space = EnvPoolEnvs(task, 1).observation_space
        assert len(space.shape) == 1
        assert space.shape[0] > 0


def test_bounds_that_envpool_does_not_know_are_infinite() -> None:
    space = EnvPoolEnvs("LunarLander-v3", 1).observation_space
    assert np.isneginf(space.low).all()
    assert np.isposinf(space.high).all()


def test_wrong_tasks_and_arguments_raise_one_line_errors() -> None:
    with pytest.raises(ProxRLError, match="EnvPool has no task Nope-v1; use --vector inprocess"):
        EnvPoolEnvs("Nope-v1", 1)
    with pytest.raises(ProxRLError, match=r"EnvPool can't make CartPole-v1: .*; check --env-kwargs wheels=3") as caught:
        EnvPoolEnvs("CartPole-v1", 1, wheels=3)
    assert "\n" not in str(caught.value)


def test_the_error_for_missing_envpool_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ProxRLError, match=r"pip install 'proxrl\[envpool\]'"):
        EnvPoolEnvs("CartPole-v1", 1)


def test_making_and_stepping_prints_nothing() -> None:
    code = (
        "import numpy as np; from proxrl.envs.envpool import EnvPoolEnvs\n"
        "for task in ('CartPole-v1', 'Pendulum-v1', 'HalfCheetah-v4', 'CheetahRun-v1', 'LunarLander-v3'):\n"
        "    pool = EnvPoolEnvs(task, 2); pool.reset(0)\n"
        "    pool.step(np.stack([pool.action_space.sample() for _ in range(2)])); pool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_pool_has_as_many_threads_as_its_run_has_cores() -> None:
    config = Config(env="Pendulum-v1", vector="envpool")
    for env_kwargs, cores, threads in (({}, 1, 1), ({}, 2, 2), ({"num_threads": 2}, 1, 2)):
        pool: Any = build_environments(config.replace(env_kwargs=env_kwargs), "Pendulum-v1", 4, world=Solo(cores))
        pool.reset(1)
        assert pool._pool.config["num_threads"] == threads
        pool.close()
