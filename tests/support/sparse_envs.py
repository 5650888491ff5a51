"""A task whose reward is far away, in a module that worker processes can import."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Chain(gymnasium.Env):
    """A chain of states. One of two actions leads a step up, the other one a step down, and which one it is differs from state to
    state. The last state has reward 1, in the first one every step has reward 0.001, and the episode lasts `length` + 8 steps.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 30) -> None:
        self.length = length
        self.observation_space = spaces.Box(0, 1, (length,), np.float32)
        self.up = np.random.default_rng(0).integers(0, 2, length)

    def observe(self) -> Any:
        return np.eye(self.length, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time, self.place = 0, 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.place += 1 if int(action) == self.up[self.place] else -1
        self.place = min(max(self.place, 0), self.length - 1)
        reward = {self.length - 1: 1.0, 0: 0.001}.get(self.place, 0.0)
        return self.observe(), reward, False, self.time == self.length + 8, {}
