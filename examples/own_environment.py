"""Training on a custom environment: any callable that returns a gymnasium.Env.

python examples/own_environment.py
proxrl train examples.own_environment:make_env --env-kwargs size=8    # the same from the shell
"""

from typing import Any

import gymnasium
import numpy as np

import proxrl


class Corridor(gymnasium.Env):
    """Walk to the right end. The reward is -1 per step and +10 at the end; an episode has at most 50 steps."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.position = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.position = max(0, self.position + (1 if action == 1 else -1))
        arrived = self.position == self.size
        return self._observation(), 10.0 if arrived else -1.0, arrived, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.position / self.size], np.float32)


def make_env(size: int = 5) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Corridor(size), max_episode_steps=50)


if __name__ == "__main__":
    result = proxrl.train(make_env, env_kwargs={"size": 5}, total_steps=20_480, clobber=True)
    agent = proxrl.load(result.path)
    print("at the start the agent goes", "right" if agent.act(np.array([0.0], np.float32)) == 1 else "left")
