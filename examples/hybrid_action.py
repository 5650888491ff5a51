"""A hybrid action: a discrete and a continuous part in one Dict, which are sampled and learned together.

python examples/hybrid_action.py
proxrl train examples.hybrid_action:make_env --action-distribution tanh
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import proxrl


class Kick(gymnasium.Env):
    """A goal is at a position in [-1, 1]: kick to its side (0 left, 1 right), with the strength that fits its distance."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Dict(side=spaces.Discrete(2), strength=spaces.Box(0.0, 1.0, (), np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.goal.copy(), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.goal.copy(), -abs(landing_position(action) - float(self.goal[0])), True, False, {}


def landing_position(action: dict[str, Any]) -> float:
    return float(action["strength"]) * (1 if action["side"] == 1 else -1)


def make_env() -> gymnasium.Env:
    return Kick()


if __name__ == "__main__":
    settings = {"total_steps": 32_768, "learning_rate": 2e-3, "num_minibatches": 8}
    result = proxrl.train(make_env, action_distribution="tanh", **settings, clobber=True)
    agent = proxrl.load(result.path)
    for position in (-0.8, 0.5):
        action = agent.act(np.array([position], np.float32))
        print(f"goal at {position}: {action}")
    goals = np.linspace(-1, 1, 41, dtype=np.float32)
    errors = [abs(landing_position(agent.act(goal[None])) - goal) for goal in goals]
    print(f"mean distance from the goal {np.mean(errors):.3f}")
