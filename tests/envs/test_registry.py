"""Families of environments, errors for those that can't run, and the choice of where they run."""

import importlib.util
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from proxrl.envs import registry
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.envs.gymnasium import InProcessEnvs, NativeVectorEnvs
from proxrl.envs.registry import check_env, choose_vector, families, find_family, make_environments
from proxrl.envs.workers import WorkerEnvs
from proxrl.errors import ProxRLError
from sample_envs import Counter

# v3 in Gymnasium 1.1, v4 in later versions.
TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-"))


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make these modules look uninstalled."""
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in modules else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    if "envpool" in modules:
        monkeypatch.setattr(registry, "task_packages", dict)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "classic"),
        ("FrozenLake-v1", "toy_text"),
        (TAXI, "toy_text"),
        ("LunarLander-v3", "box2d"),
        ("HalfCheetah-v4", "mujoco"),
        ("HalfCheetah-v5", "mujoco"),
        ("CheetahRun-v1", "dm_control"),
        ("dm_control/walker-walk-v0", "dm_control"),
        ("sample_envs:Counter", "custom"),
        ("gymnasium:CartPole-v1", "classic"),
        (Counter, "custom"),
    ],
)
def test_family(env: Any, name: str) -> None:
    assert find_family(env).name == name
    assert check_env(env).name == name


def test_families_have_unique_names_and_valid_examples() -> None:
    assert len({family.name for family in families()}) == len(families())
    for family in families():
        for example in family.examples:
            if not example.startswith("my_"):
                assert check_env(example) is family


@pytest.mark.parametrize(
    ("env", "nearest"),
    [
        ("CartPole-v9", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("HalfCheatah-v4", "HalfCheetah-v4"),
        ("dm_control/cheetah-rum-v0", "CheetahRun-v1"),
    ],
)
def test_the_error_for_unknown_ids_has_suggestions(env: str, nearest: str) -> None:
    with pytest.raises(ProxRLError, match=f"unknown environment '{env}'; did you mean {nearest}") as caught:
        check_env(env)
    assert "HalfCheetah-v3" not in str(caught.value)


def test_the_error_without_suggestions_names_the_command_for_examples() -> None:
    with pytest.raises(ProxRLError, match="unknown environment 'qqqq'; proxrl envs lists examples"):
        check_env("qqqq")


def test_the_error_for_retired_versions_names_supported_ones() -> None:
    with pytest.raises(ProxRLError, match="use HalfCheetah-v4 or HalfCheetah-v5"):
        check_env("HalfCheetah-v3")


@pytest.mark.parametrize(
    ("env", "module", "extra"),
    [
        ("HalfCheetah-v4", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("CheetahRun-v1", "envpool", "dm_control"),
        ("dm_control/cheetah-run-v0", "envpool", "dm_control"),
    ],
)
def test_a_missing_extra_error_has_the_pip_command(monkeypatch: pytest.MonkeyPatch, env: str, module: str, extra: str) -> None:
    without(monkeypatch, module)
    assert not find_family(env).installed
    with pytest.raises(ProxRLError) as caught:
        make_environments(env, {}, 2, "auto")
    assert str(caught.value) == f"{env} needs the {extra} extra: pip install 'proxrl[{extra}]'"


@pytest.mark.parametrize(
    ("env", "num_envs", "vector"),
    [
        ("CartPole-v1", 4, "inprocess"),
        ("CartPole-v1", 8, "inprocess"),
        ("CartPole-v1", 16, "native"),
        ("Acrobot-v1", 2, "inprocess"),
        ("Acrobot-v1", 4, "envpool"),
        ("Pendulum-v1", 8, "inprocess"),
        ("Pendulum-v1", 16, "envpool"),
        ("HalfCheetah-v4", 1, "inprocess"),
        ("HalfCheetah-v5", 4, "inprocess"),
        ("HalfCheetah-v5", 8, "envpool"),
        ("Humanoid-v4", 8, "inprocess"),
        ("LunarLander-v3", 4, "inprocess"),
        ("LunarLander-v3", 16, "envpool"),
        ("FrozenLake-v1", 64, "inprocess"),
        ("CheetahRun-v1", 1, "envpool"),
        ("sample_envs:Counter", 64, "inprocess"),
        (Counter, 64, "inprocess"),
    ],
)
def test_choose_vector(env: Any, num_envs: int, vector: str) -> None:
    assert choose_vector(env, num_envs, find_family(env)) == vector


def test_choose_vector_depends_on_installed_packages_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = find_family("HalfCheetah-v5")
    assert choose_vector("HalfCheetah-v5", 8, mujoco, {"forward_reward_weight": 2}) == "inprocess"
    without(monkeypatch, "envpool")
    assert choose_vector("HalfCheetah-v5", 8, mujoco) == "inprocess"


@pytest.mark.parametrize(
    ("env", "num_envs"),
    [
        ("CartPole-v1", 3),
        ("CartPole-v1", 16),
        ("HalfCheetah-v4", 2),
        ("HalfCheetah-v5", 2),
        ("HalfCheetah-v5", 8),
        ("LunarLander-v3", 2),
        ("BipedalWalker-v3", 2),
        ("FrozenLake-v1", 2),
        (TAXI, 2),
        ("Blackjack-v1", 2),
        ("dm_control/cheetah-run-v0", 2),
        ("sample_envs:Nested", 2),
    ],
)
def test_environments_of_every_family_can_be_stepped(env: str, num_envs: int) -> None:
    pool = make_environments(env, {}, num_envs)
    pool.reset(0)
    pool.action_space.seed(0)
    for _ in range(30):
        step = pool.step(np.stack([pool.action_space.sample() for _ in range(num_envs)]))
    assert pool.num_envs == num_envs
    assert step.reward.shape == step.terminated.shape == step.truncated.shape == step.valid.shape == (num_envs,)
    assert step.reward.dtype == np.float32
    if not isinstance(step.obs, dict | tuple):
        assert step.obs.shape == (num_envs, *pool.observation_space.shape)
        assert step.obs.dtype == pool.observation_space.dtype
        assert all(pool.observation_space.contains(row) for row in step.obs)
    pool.close()
    pool.close()


def test_vector_overrides_the_choice() -> None:
    for vector, kind in (("inprocess", InProcessEnvs), ("native", NativeVectorEnvs), ("envpool", EnvPoolEnvs)):
        assert type(make_environments("CartPole-v1", {}, 2, vector)) is kind
    gymnasium.register("RegisteredHere-v0", entry_point=Counter, max_episode_steps=3)  # in this process only
    try:
        pool = make_environments("RegisteredHere-v0", {}, 2, "workers", num_workers=1)
    finally:
        gymnasium.registry.pop("RegisteredHere-v0")
    assert type(pool) is WorkerEnvs
    pool.reset(0)
    assert [len(pool.step(np.zeros(2, np.int64)).episodes) for _ in range(3)] == [0, 0, 2]
    pool.close()


@pytest.mark.parametrize(
    ("env", "vector", "words"),
    [
        ("HalfCheetah-v5", "native", "no vectorized class for HalfCheetah-v5; use --vector inprocess"),
        (Counter, "native", "Counter returned Counter, but --vector native needs.*use --vector inprocess"),
        ("sample_envs:Counter", "envpool", "EnvPool can't run custom environments; use --vector inprocess"),
        ("CheetahRun-v1", "inprocess", "CheetahRun-v1 exists only in EnvPool; use --vector envpool"),
        ("phys2d/Pendulum-v1", "envpool", "unknown environment 'phys2d/Pendulum-v1'"),
        ("CartPole-v1", "gpu", "must be one of auto, inprocess, native, workers, envpool"),
    ],
)
def test_a_vector_that_is_not_possible_raises_a_one_line_error(env: Any, vector: str, words: str) -> None:
    with pytest.raises(ProxRLError, match=words) as caught:
        make_environments(env, {}, 2, vector)
    assert "\n" not in str(caught.value)


def test_checking_cartpole_imports_no_optional_package() -> None:
    code = (
        "import sys; from proxrl.envs.registry import check_env, choose_vector, families\n"
        "[family.installed for family in families()]; choose_vector('CartPole-v1', 8, check_env('CartPole-v1'))\n"
        "print(*[name for name in ('envpool', 'mujoco', 'Box2D') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
