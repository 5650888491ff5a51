"""Environments for the tests of tuning; a module of its own so that every process can import it."""

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Lever(gymnasium.Env):
    """Ten pulls; one of two levers pays 1. What is learnt shows within a few hundred steps, and chance alone gives 5."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, pays: int = 1) -> None:
        self.pays, self.count = pays, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.count = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Any:
        # A variable rather than an argument, so that a study can be resumed without it.
        time.sleep(float(os.environ.get("LEVER_SECONDS", "0")))
        self.count += 1
        return np.ones(2, np.float32), float(action == self.pays), self.count >= 10, False, {}


class Fragile(Lever):
    """Takes its process with it."""

    def step(self, action: Any) -> Any:
        os._exit(9)
