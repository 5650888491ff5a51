"""A custom term of the loss: the policy's features must also predict the reward, which shapes them where rewards are rare.

python examples/own_loss.py
proxrl train Pendulum-v1 --learner examples.own_loss:RewardPrediction coef=0.1
proxrl train CartPole-v1 --learner examples.own_loss:RewardPrediction
"""

import json

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import one_hot

import proxrl
from proxrl.bonus.api import LearnerSetup
from proxrl.config import Coefficients
from proxrl.types import Batch, Rollout


class RewardPrediction(proxrl.Learner):
    """Adds coef * (prediction - reward)^2, with a linear prediction from the policy's features and the action."""

    terms = ("reward_prediction",)  # logged as losses/reward_prediction
    sees_features = True

    def __init__(self, setup: LearnerSetup, coef: float = 0.1) -> None:
        super().__init__()
        self.coef, self.actions = coef, setup.action_space
        if not isinstance(self.actions, spaces.Box | spaces.Discrete):
            raise proxrl.ProxRLError(f"this example is for Box and Discrete actions, not for {self.actions}")
        self.layer = nn.Linear(setup.feature_size + spaces.flatdim(self.actions), 1)

    def reward(self, rollout: Rollout, now: Coefficients) -> float:
        """Called with every rollout before the update: keep what the batch does not have, and add nothing to the rewards."""
        self.rewards = torch.from_numpy(rollout.reward.reshape(-1))
        return 0.0

    def loss(self, batch: Batch, features: Tensor | None) -> dict[str, Tensor]:
        """Called with every minibatch. Autograd differentiates the result, for this layer and for the policy's encoder."""
        action = batch.action if isinstance(self.actions, spaces.Box) else one_hot(batch.action, int(self.actions.n))
        predicted = self.layer(torch.cat([features, action], 1)).squeeze(1)
        error = predicted - self.rewards.to(predicted.device)[batch.rows]
        return {"reward_prediction": self.coef * batch.mean(error**2)}


if __name__ == "__main__":
    result = proxrl.train("Pendulum-v1", learner=RewardPrediction, total_steps=10_240, threads=1, clobber=True)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    errors = [line["losses/reward_prediction"] for line in lines]
    print(f"prediction error: {np.mean(errors[:2]):.2f} at first, {np.mean(errors[-2:]):.2f} at the end")
