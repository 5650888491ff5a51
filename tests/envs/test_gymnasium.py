"""Environments in this process and Gymnasium's vectorized classes."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from proxrl.envs.api import Autoreset, episode_seed
from proxrl.envs.gymnasium import InProcessEnvs, NativeVectorEnvs, make_env, make_native
from proxrl.envs.registry import make_environments
from proxrl.envs.workers import WorkerEnvs
from proxrl.errors import ProxRLError
from proxrl.types import Episode
from sample_envs import Counter, Failing, Nested, Tenths, WrongShape, not_an_env


def counters(*endings: tuple[int, int]) -> InProcessEnvs:
    return InProcessEnvs([partial(Counter, terminate, truncate) for terminate, truncate in endings])


def test_terminated_and_truncated_are_separate_and_terminated_wins() -> None:
    pool = counters((2, 0), (0, 2), (2, 2), (0, 0))
    pool.reset(0)
    first = pool.step(np.zeros(4, np.int64))
    assert not first.terminated.any()
    assert not first.truncated.any()
    assert first.final_obs is None
    second = pool.step(np.zeros(4, np.int64))
    assert second.terminated.tolist() == [True, False, True, False]
    assert second.truncated.tolist() == [False, True, False, False]
    third = pool.step(np.zeros(4, np.int64))
    assert not third.terminated.any()
    assert not third.truncated.any()


def test_final_obs_is_the_last_observation_and_obs_begins_the_next_episode() -> None:
    pool = counters((0, 0), (2, 0), (0, 0), (0, 2))
    starts = pool.reset(0)[:, 0].copy()
    pool.step(np.zeros(4, np.int64))
    step = pool.step(np.zeros(4, np.int64))
    assert pool.autoreset is Autoreset.SAME_STEP
    assert step.valid.all()
    np.testing.assert_array_equal(step.final_obs, [[starts[1], 2], [starts[3], 2]])
    assert step.obs.dtype == np.float32
    assert step.obs[:, 1].tolist() == [2, 0, 2, 0]
    assert step.obs[1, 0] != starts[1]


def test_returns_and_lengths_are_counted_per_episode_for_both_kinds_of_ends() -> None:
    pool = counters((0, 2), (3, 0))
    pool.reset(0)
    episodes = [pool.step(np.zeros(2, np.int64)).episodes for _ in range(6)]
    assert episodes == [
        [],
        [Episode(0, 3.0, 2)],
        [Episode(1, 6.0, 3)],
        [Episode(0, 3.0, 2)],
        [],
        [Episode(0, 3.0, 2), Episode(1, 6.0, 3)],
    ]
    pool.step(np.zeros(2, np.int64))
    pool.reset(0)
    pool.step(np.zeros(2, np.int64))
    assert pool.step(np.zeros(2, np.int64)).episodes == [Episode(0, 3.0, 2)]


def native(makers: list[partial[gymnasium.Env]]) -> NativeVectorEnvs:
    return NativeVectorEnvs(SyncVectorEnv(makers))


@pytest.mark.parametrize("pool_class", [InProcessEnvs, partial(WorkerEnvs, num_workers=1), native])
@pytest.mark.parametrize("reward_type", [float, np.float64, np.float32])
def test_returns_are_summed_in_double_precision(pool_class: Any, reward_type: type) -> None:
    """Summing 3,000 rewards of 0.1 in float32 has an error of 9e-3; rounding doubles to float32 first, of 4e-6."""
    pool = pool_class([partial(Tenths, reward_type, 3_000)])
    pool.reset(0)
    for _ in range(3_000):
        step = pool.step(np.zeros(1, np.int64))
    pool.close()
    (episode,) = step.episodes
    assert episode.total_reward == pytest.approx(3_000 * float(reward_type(0.1)), rel=1e-11)
    assert type(episode.total_reward) is float


def test_nested_observations_keep_their_dtypes() -> None:
    pool = InProcessEnvs([partial(Nested, 2)] * 3)
    pool.reset(0)
    action = np.full((3, 3), 0.5, np.float32)
    pool.step(action)
    step = pool.step(action)
    image, (count, moved) = step.final_obs["image"], step.final_obs["pair"]
    assert (image.dtype, count.dtype, moved.dtype) == (np.uint8, np.int64, np.float32)
    assert image.shape == (3, 2, 2)
    assert count.tolist() == [2, 2, 2]
    np.testing.assert_array_equal(moved, np.ones((3, 3)))
    assert step.obs["pair"][0].tolist() == [0, 0, 0]


def test_episode_counts_continue_with_the_same_episodes() -> None:
    pool = counters((3, 0), (2, 0))
    pool.reset(7)
    for _ in range(6):
        step = pool.step(np.zeros(2, np.int64))
    assert pool.episode_counts.tolist() == [3, 4]
    resumed = counters((3, 0), (2, 0))
    obs = resumed.reset(7, [2, 3])
    np.testing.assert_array_equal(obs, step.obs)
    assert resumed.episode_counts.tolist() == [3, 4]


def test_environments_seeds_and_ranks_have_no_episode_in_common() -> None:
    seeds = [episode_seed(seed, env, episode) for seed in (0, 1) for env in range(16) for episode in range(20)]
    assert len(set(seeds)) == len(seeds)
    makers = [partial(Counter, 5)] * 4
    one, low, high = InProcessEnvs(makers), InProcessEnvs(makers[:2]), InProcessEnvs(makers[:2], first_env=2)
    np.testing.assert_array_equal(one.reset(3), np.concatenate([low.reset(3), high.reset(3)]))
    assert len(set(one.reset(0)[:, 0].tolist()) | set(one.reset(1)[:, 0].tolist())) == 8


def test_a_one_line_error_names_the_environment_that_failed() -> None:
    pool = InProcessEnvs([partial(Counter), partial(Failing, "raise")], first_env=4)
    pool.reset(0)
    for _ in range(2):
        pool.step(np.zeros(2, np.int64))
    with pytest.raises(ProxRLError, match=r"^environment 5 failed in step: ValueError: the wheel came off$") as caught:
        pool.step(np.zeros(2, np.int64))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ProxRLError, match=r"shape \(1,\), but its space has shape \(2,\)"):
        InProcessEnvs([WrongShape]).reset(0)


def test_make_env_accepts_ids_callables_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_env("CartPole-v1", {"max_episode_steps": 7}).spec.max_episode_steps == 7
    assert isinstance(make_env(Counter, {"terminate_at": 2}), Counter)
    assert isinstance(make_env("sample_envs:Counter"), Counter)
    (tmp_path / "only_here.py").write_text(
        "import gymnasium\n"
        "def build(**kwargs): return gymnasium.make('CartPole-v1', **kwargs)\n"
        "gymnasium.register('OnlyHere-v0', entry_point='sample_envs:Counter', max_episode_steps=3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # restores sys.path afterwards
    assert make_env("only_here:build").spec.id == "CartPole-v1"
    assert isinstance(make_env("only_here:OnlyHere-v0").unwrapped, Counter)
    gymnasium.registry.pop("OnlyHere-v0")


@pytest.mark.parametrize(
    ("env", "kwargs", "words"),
    [
        ("CartPole-v1", {"wheels": 3}, "can't make CartPole-v1: TypeError: .*; check --env-kwargs wheels=3"),
        (partial(Failing), None, "can't make .*: TypeError"),
        (not_an_env, None, "not_an_env returned str, but must return a gymnasium.Env"),
        ("no_such_module:thing", None, "there is no module 'no_such_module'"),
        ("sample_envs:number", None, "module 'sample_envs' has no callable 'number'"),
    ],
)
def test_make_env_raises_one_line_errors(env: object, kwargs: dict[str, int] | None, words: str) -> None:
    with pytest.raises(ProxRLError, match=words) as caught:
        make_env(env, kwargs)
    assert "\n" not in str(caught.value)


def test_making_a_mujoco_task_prints_nothing_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    make_env("HalfCheetah-v4").close()
    assert capfd.readouterr() == ("", "")
    assert not [warning for warning in recwarn if "gymnasium" in warning.filename]
    assert list(tmp_path.iterdir()) == []


def test_vectorized_class_marks_exactly_the_dummy_steps() -> None:
    pool = make_native("CartPole-v1", 6, {"max_episode_steps": 15})
    pool.reset(1)
    rng = np.random.default_rng(0)
    before = np.zeros(6, np.bool_)
    length, episodes, endings = np.zeros(6, np.int64), [], {"terminated": 0, "truncated": 0}
    for _ in range(120):
        step = pool.step(rng.integers(0, 2, 6))
        assert step.final_obs is None
        np.testing.assert_array_equal(step.valid, ~before)
        assert not (step.terminated & step.truncated).any()
        fallen = (np.abs(step.obs[:, 0]) > 2.4) | (np.abs(step.obs[:, 2]) > 12 * np.pi / 180)
        np.testing.assert_array_equal(fallen, step.terminated)  # the last observation is from before the reset
        assert (np.abs(step.obs[before]) <= 0.05).all()  # and the dummy step returns that of the reset
        assert (step.reward[before] == 0).all()
        length += step.valid
        ended = step.terminated | step.truncated
        for episode in step.episodes:
            assert episode == Episode(episode.env, float(length[episode.env]), int(length[episode.env]))
        assert [episode.env for episode in step.episodes] == np.flatnonzero(ended).tolist()
        length[ended] = 0
        episodes += step.episodes
        endings["terminated"] += int(step.terminated.sum())
        endings["truncated"] += int(step.truncated.sum())
        before = ended
    assert min(endings.values()) > 3
    assert max(episode.length for episode in episodes) == 15
    assert pool.episode_counts.sum() == 6 + len(episodes) - before.sum()


@pytest.mark.parametrize("maker", [partial(Counter, 2), partial(Nested, 0, 3)])
def test_vectorized_class_that_resets_in_the_same_step(maker: partial[gymnasium.Env]) -> None:
    native = NativeVectorEnvs(SyncVectorEnv([maker] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    assert native.autoreset is Autoreset.SAME_STEP
    loop = InProcessEnvs([maker] * 2)
    native.reset(0)
    loop.reset(0)
    native.action_space.seed(0)
    for _ in range(8):
        action = np.stack([native.action_space.sample() for _ in range(2)])
        ours, theirs = loop.step(action), native.step(action)
        assert theirs.valid.all()
        np.testing.assert_array_equal(ours.terminated, theirs.terminated)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)
        assert ours.episodes == theirs.episodes
        assert (ours.final_obs is None) == (theirs.final_obs is None)
        if ours.final_obs is not None and isinstance(ours.final_obs, dict):
            np.testing.assert_array_equal(ours.final_obs["pair"][1], theirs.final_obs["pair"][1])
        elif ours.final_obs is not None:
            np.testing.assert_array_equal(ours.final_obs[:, 1], theirs.final_obs[:, 1])
    np.testing.assert_array_equal(native.episode_counts, loop.episode_counts)


def test_vectorized_class_without_autoreset_is_an_error() -> None:
    with pytest.raises(ProxRLError, match="use --vector inprocess"):
        NativeVectorEnvs(SyncVectorEnv([Counter], autoreset_mode=AutoresetMode.DISABLED))


def test_parts_of_nested_actions_have_the_types_of_sample() -> None:
    environments = make_environments("odd_envs:PickyAction", num_envs=2)
    environments.reset(1)
    environments.step({"move": np.array([0, 1]), "turn": (np.array([-1, 1]),)})
    environments.close()
