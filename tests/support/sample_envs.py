"""Small environments with known numbers, in a module that worker processes can import."""

import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observes (a random number of the episode, steps so far); the reward is the step count."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, terminate_at: int = 0, truncate_at: int = 0) -> None:
        self.terminate_at, self.truncate_at = terminate_at, truncate_at
        self.start, self.count = 0.0, 0

    def observe(self) -> Any:
        return np.array([self.start, self.count])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.start, self.count = float(self.np_random.random()), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert isinstance(action, int | np.integer)
        self.count += 1
        return self.observe(), float(self.count), self.count == self.terminate_at, self.count == self.truncate_at, {}


class Nested(Counter):
    """A Counter with nested observations and a continuous action."""

    action_space = spaces.Box(-1, 1, (3,), np.float32)
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(50), spaces.Box(-9, 9, (3,), np.float64)]),
        }
    )

    def observe(self) -> Any:
        return {"pair": (self.count, self.moved), "image": np.full((2, 2), int(self.start * 255), np.uint8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.moved = np.zeros(3)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.moved = np.clip(self.moved + action, -9, 9)
        return super().step(int(action[0] > 0))


class Tenths(Counter):
    """A Counter with rewards of 0.1, of the given type."""

    def __init__(self, reward_type: type, terminate_at: int) -> None:
        super().__init__(terminate_at)
        self.reward = reward_type(0.1)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self.reward, terminated, truncated, info


class Failing(Counter):
    """A Counter that raises, hangs or exits at the third step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action: Any) -> Any:
        if self.count == 2:
            if self.how == "raise":
                raise ValueError("the wheel came off\nand more")
            if self.how == "exit":
                sys.exit(3)
            time.sleep(600)
        return super().step(action)


class WrongShape(Counter):
    """A Counter whose observations do not fit its space."""

    def observe(self) -> Any:
        return np.zeros(1)


def not_an_env() -> str:
    return "text"


number = 3


class StoresAction(gymnasium.Env):
    """Penalizes the change of the action, which it stores, as the rewards of many robots do."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.previous = np.zeros(2)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        change = float(np.abs(action - self.previous).sum())
        self.previous = action
        return np.zeros(1, np.float32), -change, False, False, {}
