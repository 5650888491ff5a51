"""Environments whose observations can be computed from their counts, and wrappers for them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Album(gymnasium.Env):
    """Observes (episode, step) in every kind of leaf; episodes last 3, 5, 3, 5, ... steps, and every other one is truncated."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - declared like this in Gymnasium
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (9, 8, 3), np.uint8),
            "first": spaces.Box(0, 255, (2, 8, 9), np.uint8),
            "gray": spaces.Box(0, 255, (8, 9), np.uint8),
            "rest": spaces.Tuple(
                [spaces.Discrete(50), spaces.Box(-9, 99, (2, 2), np.float64), spaces.Box(-1, 99, (), np.float32)]
            ),
        }
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.episode, self.count = render_mode, -1, 0

    def observe(self) -> Any:
        number = 10 * (self.episode % 20) + self.count
        camera = (number + np.arange(216)).reshape(9, 8, 3).astype(np.uint8)
        first = (number + np.arange(144)).reshape(2, 8, 9).astype(np.uint8)
        pair = np.array([[self.episode, self.count], [0, 1]], np.float64)
        return {"camera": camera, "first": first, "gray": first[1], "rest": (self.count, pair, np.float32(self.count))}

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, self.count % 2], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self.observe(), self.info()

    def step(self, action: Any) -> Any:
        self.count += 1
        over, truncates = self.count == (5 if self.episode % 2 else 3), self.episode % 4 < 2
        return self.observe(), 1.0, over and not truncates, over and truncates, self.info()

    def render(self) -> Any:
        image = np.zeros((16, 16, 3), np.uint8)
        image[self.count] = 255
        return image


class Ticker(gymnasium.Env):
    """Observes the step; the reward is the step too. The episode ends after `length` steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - declared like this in Gymnasium
    observation_space = spaces.Box(0, 99, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 7, scale: float = 1.0, render_mode: str | None = None) -> None:
        self.length, self.scale, self.render_mode, self.time = length, scale, render_mode, 0

    def observe(self) -> Any:
        return np.array([self.time, 1], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), self.scale * self.time, self.time == self.length, False, {"time": self.time}

    def render(self) -> Any:
        image = np.zeros((16, 16, 3), np.uint8)
        image[self.time % 16] = 255
        return image


class Wider(Ticker):
    """Has another observation space than Ticker."""

    observation_space = spaces.Box(0, 99, (3,), np.float32)


class Append(gymnasium.ObservationWrapper):
    """Appends a number to the observation, and so changes its space."""

    def __init__(self, env: gymnasium.Env, number: float = 0.5) -> None:
        super().__init__(env)
        inner: Any = env.observation_space
        self.number = np.float32(number)
        self.observation_space = spaces.Box(-99, 99, (inner.shape[0] + 1,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, self.number)


class Times(gymnasium.RewardWrapper):
    """Multiplies rewards."""

    def __init__(self, env: gymnasium.Env, factor: float, note: str = "") -> None:
        super().__init__(env)
        self.factor, self.note = factor, note

    def reward(self, reward: Any) -> float:
        return self.factor * float(reward)


def breaks(env: gymnasium.Env) -> gymnasium.Env:
    raise ValueError(f"the lens of {type(env.unwrapped).__name__} is scratched")


def not_a_wrapper(env: gymnasium.Env) -> str:
    return str(env)


number = 3
