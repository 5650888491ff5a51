"""Environments with configurable faults for the end-to-end tests, in a module that every process can import."""

import os
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Odd(gymnasium.Env):
    """Episodes of 20 steps with constant observations; in every second environment of a process, `fault` occurs at step `at`."""

    observation_space: gymnasium.Space = spaces.Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space = spaces.Discrete(2)
    made = 0

    def __init__(self, fault: str = "", at: int = 5, worst: int = 0, size: int = 3) -> None:
        self.fault = fault if Odd.made % 2 == worst else ""
        Odd.made += 1
        self.at, self.count = at, 0
        self.observation_space = self.observation_space if size == 3 else spaces.Box(-1, 1, (size,), np.float32)

    def observe(self, number: float = 0.0) -> Any:
        return np.full(self.observation_space.shape or (), number, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        if self.fault == "reset":
            raise RuntimeError("the wheel came off\nand more")
        self.count = 0
        return self.observe(np.nan if self.fault == "nan-at-reset" else 0.0), {}

    def step(self, action: Any) -> Any:
        # A variable instead of an argument, so that it may differ when a run is resumed.
        time.sleep(float(os.environ.get("ODD_SECONDS", "0")))
        self.count += 1
        fault = self.fault if self.count == self.at else ""
        if fault == "step":
            raise RuntimeError("the wheel came off\nand more")
        if fault == "exit":
            sys.exit(3)
        if fault == "hang":
            time.sleep(600)
        last = self.fault == "nan-at-the-end" and self.count >= 20
        obs = self.observe(np.nan if fault == "nan" or last else 0.0)
        return obs, np.inf if fault == "inf" else 1.0, False, self.count >= 20, {}


class TupleObs(Odd):
    observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])


class OutsideObs(Odd):
    """Its second entry is once out of range, where a one-hot vector would silently change the first."""

    observation_space = spaces.Dict(kinds=spaces.MultiDiscrete([2, 3]))

    def observe(self, number: float = 0.0) -> Any:
        return {"kinds": np.array([1, -1 if self.count == 7 else 2])}


class EmptyObs(Odd):
    observation_space = spaces.Dict()

    def observe(self, number: float = 0.0) -> Any:
        return {}


class PickyAction(Odd):
    """Uses its actions as keys of a dict, as it could those of `sample()`."""

    action_space = spaces.Dict(move=spaces.Discrete(2), turn=spaces.Tuple([spaces.Discrete(3, start=-1)]))

    def step(self, action: Any) -> Any:
        assert {0: "left", 1: "right"}[action["move"]]
        assert {-1: "left", 0: "ahead", 1: "right"}[action["turn"][0]]
        return super().step(action)


class TextObs(Odd):
    observation_space = spaces.Text(3)


class GraphObs(Odd):
    observation_space = spaces.Graph(spaces.Discrete(2), None)


class SequenceObs(Odd):
    observation_space = spaces.Dict(items=spaces.Sequence(spaces.Discrete(2)))


class TextAction(Odd):
    action_space = spaces.Dict(say=spaces.Text(3))


class WholeNumberAction(Odd):
    action_space = spaces.Box(0, 5, (2,), np.int64)


def make_short(limit: int = 7) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=limit)


def not_an_env() -> str:
    return "text"


number = 3
