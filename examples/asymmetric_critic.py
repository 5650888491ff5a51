"""A critic that sees more than the actor: what is known only in training improves the values, and no action depends on it.

python examples/asymmetric_critic.py
proxrl train examples.asymmetric_critic:make_env --actor-keys seen --critic-keys seen luck
"""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import proxrl


class Lottery(gymnasium.Env):
    """Choose the sign of the observed number. The reward is mostly luck: drawn before the action, hidden from the actor."""

    observation_space = spaces.Dict(seen=spaces.Box(-1, 1, (1,), np.float32), luck=spaces.Box(-5, 5, (1,), np.float32))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        draw = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        self.obs = {"seen": draw[0], "luck": 5 * draw[1]}
        return dict(self.obs), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        right = bool(action) == bool(self.obs["seen"][0] > 0)
        return dict(self.obs), float(right) + float(self.obs["luck"][0]), True, False, {}


def make_env() -> gymnasium.Env:
    return Lottery()


def explained(run: Path) -> float:
    """Return the share of the returns' variance that the value function explained in the last iteration."""
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["losses/explained_variance"]


if __name__ == "__main__":
    settings: dict[str, Any] = {"actor_keys": ["seen"], "total_steps": 16_384, "num_minibatches": 8, "clobber": True}
    blind = proxrl.train(make_env, critic_keys=["seen"], name="blind", **settings)
    result = proxrl.train(make_env, critic_keys=["seen", "luck"], name="asymmetric", **settings)
    print(f"the value explains {explained(result.path):.2f} of the returns; without the hidden key {explained(blind.path):.2f}")
    agent = proxrl.load(result.path)
    seen = np.linspace(-1, 1, 101, dtype=np.float32)[:, None]
    lucky, unlucky = (agent.act({"seen": seen, "luck": np.full_like(seen, luck)}) for luck in (5, -5))
    print("actions that depend on the hidden key:", int((lucky != unlucky).sum()))
