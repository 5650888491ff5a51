"""Vectorized environments of users, for the tests of `proxrl.envs.vector` and of whole runs."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from odd_envs import Odd


class Clock(gymnasium.Env):
    """Counts its steps. An episode ends after `length` steps, by a time limit if it is odd."""

    observation_space = spaces.Dict(count=spaces.Box(0, 99, (1,), np.float64), length=spaces.Discrete(9))
    action_space = spaces.Discrete(2)
    render_mode: str | None = None

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        self.length, self.count, self.render_mode = length, 0, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over, odd = self.count == self.length, self.length % 2 == 1
        return self.observe(), float(self.count), over and not odd, over and odd, {"is_success": over}

    def observe(self) -> Any:
        return {"count": np.array([float(self.count)]), "length": self.length}

    def render(self) -> Any:
        image = np.zeros((16, 16, 3), np.uint8)
        image[: self.count] = 255
        return image


def clocks(num_envs: int = 3, mode: str = "NextStep", render_mode: str | None = None) -> SyncVectorEnv:
    """Clocks whose episodes have 3, 4, 5, ... steps."""
    makers = [lambda n=n: Clock(3 + n, render_mode) for n in range(num_envs)]  # type: ignore[misc]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def three_clocks() -> VectorEnv:
    return clocks(3)


def at_least(num_envs: int) -> VectorEnv:
    return clocks(num_envs)


def masked() -> VectorEnv:
    class Masked(Clock):
        observation_space = spaces.Dict({**Clock.observation_space.spaces, "action_mask": spaces.MultiBinary(2)})

    return SyncVectorEnv([Masked])


class Silent(VectorEnv):
    """Has shapes that are wrong in one way, and by default no autoreset mode."""

    def __init__(self, wrong: str = "", mode: AutoresetMode | None = None) -> None:
        self.num_envs, self.wrong = 2, wrong
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = Odd.observation_space, Odd.action_space
        self.observation_space = spaces.Box(-1, 1, (2, 3), np.float32)
        self.action_space = spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((3,) if self.wrong == "obs" else (2, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        if self.wrong == "step":
            raise RuntimeError("the wheel came off")
        ended = np.array([self.wrong == "final_obs", False])
        rewards = np.ones((2, 1) if self.wrong == "reward" else 2)
        return np.zeros((2, 3), np.float32), rewards, ended, np.zeros(2, np.bool_), {}
