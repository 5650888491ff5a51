"""A custom bonus with its own networks: several models predict the next observation, and the agent is paid where they disagree.

python examples/own_bonus.py
proxrl train MountainCar-v0 --bonus examples.own_bonus:Disagreement coef=5 models=4
"""

import json

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import proxrl
from proxrl.bonus.api import LearnerSetup
from proxrl.config import Coefficients
from proxrl.types import Batch, Rollout


class Disagreement(proxrl.Learner):
    """For bounded vectors of observations and Discrete actions. The models learn together with the policy."""

    terms = ("models",)  # logged as losses/models

    def __init__(self, setup: LearnerSetup, coef: float = 5.0, models: int = 3) -> None:
        super().__init__()
        low, high = setup.observation_space.low, setup.observation_space.high
        self.coef, self.choices, self.middle, self.half = coef, setup.action_space.n, (low + high) / 2, (high - low) / 2
        inputs, outputs = len(low) + self.choices, len(low)
        networks = (nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs)) for _ in range(models))
        self.models, self.world = nn.ModuleList(networks), setup.world

    def predictions(self, inputs: Tensor) -> Tensor:
        return torch.stack([model(inputs) for model in self.models])  # [models, B, size]

    @torch.no_grad()
    def reward(self, rollout: Rollout, now: Coefficients) -> np.ndarray:
        """Keep the rollout for `loss`, and return the bonus [T, N]."""
        obs = torch.from_numpy(((rollout.obs - self.middle) / self.half).astype(np.float32))
        self.inputs = torch.cat([obs[:-1], one_hot(torch.from_numpy(rollout.action), self.choices)], 2).flatten(0, 1)
        self.change = (obs[1:] - obs[:-1]).flatten(0, 1)
        self.known = torch.from_numpy(~(rollout.terminated | rollout.truncated)).reshape(-1)  # the next one is of this episode
        bonus = self.coef * self.predictions(self.inputs).std(0).mean(1) * self.known
        self.mean = np.mean(self.world.gather(float(bonus.mean())))  # over all ranks
        return bonus.view(rollout.reward.shape).numpy()

    def loss(self, batch: Batch, features: Tensor | None) -> dict[str, Tensor]:
        errors = self.predictions(self.inputs[batch.rows]) - self.change[batch.rows]
        return {"models": batch.mean(errors.square().mean((0, 2)) * self.known[batch.rows])}

    def metrics(self) -> dict[str, float]:
        return {"bonus/disagreement": float(self.mean)}


if __name__ == "__main__":
    result = proxrl.train("MountainCar-v0", bonus=(Disagreement, {"coef": 5}), total_steps=16_384, threads=1, clobber=True)
    lines = (result.path / "metrics.jsonl").read_text().splitlines()
    bonuses = [json.loads(line)["bonus/disagreement"] for line in lines]
    print(f"bonus per step: {bonuses[0]:.3f} before the models have learned, {bonuses[-1]:.3f} at the end")
