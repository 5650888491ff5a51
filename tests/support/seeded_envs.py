"""Environments for the tests of several runs, in a module that every process can import."""

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counted(gymnasium.Env):
    """Episodes of ten steps, whose rewards are drawn at the reset, and in which `fault` occurs at step `at`.

    Its rewards also count how many environments this process has made: they differ if two runs share a process.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, fault: str = "", at: int = 15) -> None:
        Counted.made += 1
        self.number, self.fault, self.at = Counted.made, fault, at
        self.count = self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.count, self.pays = 0, self.np_random.integers(5)
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Any:
        # A variable instead of an argument, so that a run can be resumed without it.
        time.sleep(float(os.environ.get("COUNTED_SECONDS", "0")))
        self.count, self.total = self.count + 1, self.total + 1
        if self.fault == "raise" and self.total == self.at:
            raise RuntimeError("the wheel came off")
        if self.fault == "die" and self.total == self.at:
            os._exit(9)
        return np.ones(2, np.float32), float(self.pays + action + 10 * self.number), self.count >= 10, False, {}
