"""Environments for the tests of tuning, in a module that every process can import."""

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Lever(gymnasium.Env):
    """Ten steps with two actions, one of which gives a reward of 1.

    A random policy has a return of 5, and learning shows within a few hundred steps.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, pays: int = 1) -> None:
        self.pays, self.count = pays, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.count = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Any:
        # An environment variable rather than an argument, so that a study can be resumed without it.
        time.sleep(float(os.environ.get("LEVER_SECONDS", "0")))
        self.count += 1
        return np.ones(2, np.float32), float(action == self.pays), self.count >= 10, False, {}


class Fragile(Lever):
    """Ends its process in the first step."""

    def step(self, action: Any) -> Any:
        os._exit(9)
