"""Action masks: info["action_mask"] contains the actions that are allowed now, and only these are sampled.

python examples/action_mask.py
proxrl train examples.action_mask:make_env --action-mask info
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import proxrl


class Nim(gymnasium.Env):
    """Take 1, 2 or 3 of 10 matches, in turns with a random player. The player who takes the last match wins."""

    observation_space = spaces.Discrete(11)
    action_space = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.matches = 10
        return self.matches, self.info()

    def info(self) -> dict[str, Any]:
        """Return one bit for each action, 1 if it is allowed, as in self.action_space.sample(mask)."""
        return {"action_mask": np.array([take <= self.matches for take in (1, 2, 3)], np.int8)}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action > self.matches:
            raise ValueError(f"there are no {action} matches left")  # would stop training, but the mask prevents it
        self.matches -= action
        if self.matches == 0:
            return 0, 1.0, True, False, self.info()  # the last mask of an episode may be empty: no action follows
        self.matches -= int(self.np_random.integers(1, min(3, self.matches) + 1))
        return self.matches, -float(self.matches == 0), self.matches == 0, False, self.info()


def make_env() -> gymnasium.Env:
    return Nim()


if __name__ == "__main__":
    result = proxrl.train(make_env, action_mask="info", total_steps=24_576, learning_rate=1e-3, num_minibatches=8, clobber=True)
    agent, env, wins = proxrl.load(result.path), make_env(), 0
    for game in range(100):
        obs, info = env.reset(seed=game)
        over = False
        while not over:
            obs, reward, over, _, info = env.step(int(agent.act(obs, mask=info["action_mask"])))
        wins += reward > 0
    print(f"won {wins} of 100 games without a forbidden action")
