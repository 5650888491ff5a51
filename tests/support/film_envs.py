"""Environments of one's own, which can be drawn, or can't."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Ten steps along a line, drawn as a spot on a picture of 7 x 9 pixels; moving right is the only action that is allowed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 - Gymnasium declares it so
    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, colour: int = 255) -> None:
        self.render_mode, self.colour = render_mode, colour

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        assert action == 1
        self.place += 1
        obs, info = self._observe()
        return obs, 0.5, self.place == 10, False, info

    def _observe(self) -> Any:
        return np.array([self.place], np.float32), {"action_mask": np.array([0, 1], np.int8)}

    def render(self) -> Any:
        picture = np.zeros((7, 9, 3), np.uint8)
        picture[3, min(self.place, 8)] = self.colour
        return picture


class Undrawn(Walk):
    """Takes no render_mode."""

    def __init__(self) -> None:
        super().__init__()


class Black(Walk):
    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class Flat(Walk):
    def render(self) -> Any:
        return np.zeros((8, 8), np.float32)


def already_drawn() -> gymnasium.Env:
    return Walk("rgb_array")
