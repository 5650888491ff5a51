"""Custom environments, with and without working rendering."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Ten steps along a line, rendered as a dot on 7 x 9 pixels. The action mask allows only moving right."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 - declared like this in Gymnasium
    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, color: int = 255) -> None:
        self.render_mode, self.color = render_mode, color

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        assert action == 1
        self.position += 1
        obs, info = self._observe()
        return obs, 0.5, self.position == 10, False, info

    def _observe(self) -> Any:
        return np.array([self.position], np.float32), {"action_mask": np.array([0, 1], np.int8)}

    def render(self) -> Any:
        image = np.zeros((7, 9, 3), np.uint8)
        image[3, min(self.position, 8)] = self.color
        return image


class WithoutRenderMode(Walk):
    """Takes no render_mode."""

    def __init__(self) -> None:
        super().__init__()


class Black(Walk):
    """Renders only black frames."""

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class WithoutChannels(Walk):
    """Renders frames of the wrong shape and type."""

    def render(self) -> Any:
        return np.zeros((8, 8), np.float32)


def with_render_mode() -> gymnasium.Env:
    return Walk("rgb_array")
