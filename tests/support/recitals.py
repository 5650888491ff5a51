"""An environment with every kind of space for policies with a memory. Its returns depend on all actions."""

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from proxrl.common.tree import tree_leaves

VECTOR = spaces.Box(-2, 2, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 12, 1), np.uint8)
OBSERVATIONS: dict[str, gymnasium.Space] = {
    "vector": VECTOR,
    "image": IMAGE,
    "dict": spaces.Dict({"numbers": VECTOR, "picture": IMAGE, "kind": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([VECTOR, spaces.MultiBinary(2)]),
}
ACTIONS: dict[str, gymnasium.Space] = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "dict": spaces.Dict({"bits": spaces.MultiBinary(2), "move": spaces.Box(-1, 1, (1,), np.float32)}),
}


class Recital(gymnasium.Env):
    """Random observations that depend on the number of the episode alone, and rewards that depend on the action and the time.

    Episodes have `length`, length - 1, length, ... steps; every second one is truncated.
    """

    def __init__(self, observation: str = "vector", action: str = "box", length: int = 5, masks: bool = False) -> None:
        self.observation_space, self.action_space = copy.deepcopy(OBSERVATIONS[observation]), ACTIONS[action]
        self.length, self.masks, self.episode, self.time = length, masks, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += self.time > 0  # an episode without a step does not count
        self.time = 0
        self.observation_space.seed(self.episode)
        return self.observation_space.sample(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        reward = (self.time + 1) * sum(float(np.asarray(leaf).sum()) for leaf in tree_leaves(action))
        over, odd = self.time >= self.length - self.episode % 2, self.episode % 2 == 1
        return self.observation_space.sample(), reward, over and not odd, over and odd, self.info()

    def info(self) -> dict[str, Any]:
        """Return the mask of a Discrete action, which allows two of three choices."""
        return {"action_mask": (np.arange(3) != self.time % 3).astype(np.int8)} if self.masks else {}


def vectorized(num_envs: int) -> VectorEnv:
    return SyncVectorEnv([Recital] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
