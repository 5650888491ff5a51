"""Environments whose `info` has known numbers, in a module that worker processes can import."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# The forms in which environments give a success.
FORMS: dict[str, Callable[[bool], Any]] = {
    "bool": bool,
    "numpy": np.bool_,
    "float": float,
    "array": lambda success: np.array(success),
    "row": lambda success: np.array([success], np.float32),
    "text": str,
    "share": lambda success: 0.25 + success / 2,
    "nan": lambda success: float("nan") if success else None,
}


class Goals(gymnasium.Env):
    """Episodes of `length` steps, of which the first and then every third is a success.

    `speed` in the info of step t (from 1) of episode k (from 0) is 10 k + t, and `terms/forward` is twice that. The info of a
    reset has other numbers, which must never be counted.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3, key: str = "is_success", form: str = "bool", truncates: bool = False) -> None:
        self.length, self.key, self.form, self.truncates = length, key, FORMS[form], truncates
        self.episode, self.time = 0, 0

    def info(self, success: bool, speed: float) -> dict[str, Any]:
        return {self.key: self.form(success), "speed": speed, "terms": {"forward": np.float32(2 * speed)}, "place": "here"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        # The reset that looks for action masks does not count.
        self.episode, self.time = self.episode + (self.time > 0), 0
        return np.zeros(2, np.float32), self.info(self.episode % 3 != 1, 1000.0)

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time == self.length
        info = self.info(over and self.episode % 3 == 0, 10.0 * self.episode + self.time)
        if over:
            info["final_only"] = 100.0 + self.episode
        return np.zeros(2, np.float32), 1.0, over and not self.truncates, over and self.truncates, info
