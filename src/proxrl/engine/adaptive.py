"""Coefficients that adapt to how far the last update moved the policy, measured by the KL divergence."""

import dataclasses

import torch
from torch import Tensor, nn

from proxrl.config import Coefficients


class AdaptiveCoefficients(nn.Module):
    """Factors on the KL penalty and on the learning rate. Without a target they stay at 1. They are buffers, so checkpoints
    restore them.
    """

    penalty: Tensor
    step_size: Tensor  # the factor on the learning rate; checkpoints know it by this name

    def __init__(self, penalty_target: float | None, learning_rate_target: float | None) -> None:
        super().__init__()
        self.penalty_target, self.learning_rate_target = penalty_target, learning_rate_target
        self.register_buffer("penalty", torch.ones(()))
        self.register_buffer("step_size", torch.ones(()))

    def apply_to(self, now: Coefficients) -> Coefficients:
        penalty, step_size = self.penalty.item(), self.step_size.item()
        return dataclasses.replace(now, kl_coef=now.kl_coef * penalty, learning_rate=now.learning_rate * step_size)

    def observe(self, metrics: dict[str, float]) -> None:
        """Adapt to the metrics of an update; an update without optimizer steps has no KL divergence."""
        divergence = metrics.get("losses/final_kl")
        if divergence is None:
            return
        # The adaptive penalty of the PPO paper: doubled if the divergence exceeds 1.5 times the target, halved if it is below
        # 1 / 1.5 of it. The learning rate changes by smaller factors, since it acts at once.
        if self.penalty_target is not None:
            self.penalty *= _factor(divergence / self.penalty_target, tolerance=1.5, factor=2.0)
        if self.learning_rate_target is not None:
            self.step_size /= _factor(divergence / self.learning_rate_target, tolerance=2.0, factor=1.5)
        # Bounded, because a policy that no longer changes would drive them to zero or infinity.
        self.penalty.clamp_(2.0**-20, 2.0**20)
        self.step_size.clamp_(1 / 100, 100)


def _factor(ratio: float, tolerance: float, factor: float) -> float:
    """Return `factor` above the tolerance, 1 / `factor` below 1 / tolerance, and 1 in between."""
    return factor if ratio > tolerance else 1 / factor if ratio < 1 / tolerance else 1.0
