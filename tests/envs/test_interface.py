"""What an environment lacks or returns wrongly is explained, wherever it runs and however it is wrapped."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from proxrl.envs.gymnasium import InProcessEnvs, make_env
from proxrl.envs.workers import WorkerEnvs
from proxrl.errors import ProxRLError
from sample_envs import Counter


class OldStep(Counter):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class OldReset(Counter):
    """Its observation has two numbers, so that unpacking it succeeds."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class NoSeed(Counter):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class SmallerLater(Counter):
    """NumPy would broadcast its observations."""

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[:1], *rest


class TextReward(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), "much", False, False, {}


class TwoEndings(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, np.zeros(2, bool), False, {}


class NoAction(Counter):
    action_space = None  # type: ignore[assignment]


class NoObservation(gymnasium.Env):
    action_space = Counter.action_space


class OwnMistake(Counter):
    """An error in its own code is not taken for one of its interface."""

    def step(self, action: Any) -> Any:
        _first, _second = (1,)  # type: ignore[misc]
        return super().step(action)


def limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(OldStep(), 10)


def limited_reset() -> gymnasium.Env:
    return gymnasium.wrappers.RecordEpisodeStatistics(OldReset(), 10)


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (
        OldStep,
        r"environment 7: step returns \(ndarray, float, bool, dict\), as in the old gym API.*\[step-returns\].*to fix it",
    ),
    (limited, r"environment 7: step returns 4 values, as in the old gym API.* \[step-returns\]"),
    (OldReset, r"environment 7: reset returns an array of shape \(2,\) \[reset-returns\]: .*return \(observation, info\)"),
    (NoSeed, r"environment 7: reset does not take a seed .*define reset\(self, \*, seed=None"),
    (SmallerLater, r"environment 7: observation returned by step has shape \(1,\), but its space has shape \(2,\)"),
    (TextReward, r"environment 7: the reward is 'much' of type str, not a number \[reward-type\]"),
    (TwoEndings, r"environment 7: terminated is an array of shape \(2,\), not a bool \[ending-type\]"),
    (NoAction, r"NoAction: action_space is None .*not a gymnasium.Space \[space-missing\].*'proxrl check' finds more"),
    (NoObservation, r"NoObservation: there is no observation_space \[space-missing\]"),
    (OwnMistake, r"environment 7 failed in step: ValueError: not enough values to unpack \(expected 2, got 1\)"),
]


def play(pool: Any) -> None:
    try:
        pool.reset(0)
        pool.step(np.zeros(pool.num_envs, np.int64))
    finally:
        pool.close()


@pytest.mark.parametrize(("env", "says"), FAULTS, ids=[env.__name__ for env, _ in FAULTS])
@pytest.mark.parametrize("action_mask", ["auto", "off"])
def test_the_error_explains_what_is_wrong(env: Callable[[], Any], says: str, action_mask: str) -> None:
    with pytest.raises(ProxRLError, match=f"^{says}"):
        play(InProcessEnvs([lambda: make_env(env, action_mask=action_mask)], first_env=7))


def test_workers_give_the_same_explanation() -> None:
    with pytest.raises(ProxRLError, match=FAULTS[0][1]):
        play(WorkerEnvs([OldStep], first_env=7))


def test_observations_may_have_more_keys_than_their_space() -> None:
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2))
    methods = {"observation_space": space, "observe": lambda _: {"a": 1, "b": "a name"}}
    play(InProcessEnvs([type("More", (Counter,), methods)]))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "returned None, .* return statement"),
        (Counter, r"returned the class Counter, but must return a gymnasium.Env: Counter\("),
        ("text", "returned str, but must return a gymnasium.Env"),
        (type("Duck", (), {"reset": print, "step": print})(), "derive the class Duck from it"),
        (type("Old", (), {"__module__": "gym.core"})(), "old gym package; write 'import gymnasium as gym'"),
    ],
)
def test_what_is_not_an_environment(made: Any, says: str) -> None:
    with pytest.raises(ProxRLError, match=says):
        make_env(lambda: made)
