"""Coefficients that answer to how far the last update went, by the KL divergence between the policies before and after it."""

import dataclasses

import torch
from torch import Tensor, nn

from proxrl.config import Coefficients


class Steering(nn.Module):
    """Factors on the KL penalty and on the step size. Without a target they stay at 1; buffers, so that a resumed run goes on
    with them.
    """

    penalty: Tensor
    step_size: Tensor

    def __init__(self, penalty_target: float | None, step_size_target: float | None) -> None:
        super().__init__()
        self.penalty_target, self.step_size_target = penalty_target, step_size_target
        self.register_buffer("penalty", torch.ones(()))
        self.register_buffer("step_size", torch.ones(()))

    def apply_to(self, now: Coefficients) -> Coefficients:
        penalty, step_size = self.penalty.item(), self.step_size.item()
        return dataclasses.replace(now, kl_coef=now.kl_coef * penalty, learning_rate=now.learning_rate * step_size)

    def observe(self, metrics: dict[str, float]) -> None:
        """After an update; one that took no step says nothing."""
        divergence = metrics.get("losses/final_kl")
        if divergence is None:
            return
        # Twice the penalty where the policy went half as far again as it should, half where it kept as much below (the adaptive
        # penalty of the PPO paper); the step size more gently, since its effect comes at once.
        if self.penalty_target is not None:
            self.penalty *= _answer(divergence / self.penalty_target, tolerance=1.5, factor=2.0)
        if self.step_size_target is not None:
            self.step_size /= _answer(divergence / self.step_size_target, tolerance=2.0, factor=1.5)
        # A policy that no longer moves at all must not drive them out of all bounds.
        self.penalty.clamp_(2.0**-20, 2.0**20)
        self.step_size.clamp_(1 / 100, 100)


def _answer(ratio: float, tolerance: float, factor: float) -> float:
    """What to multiply a brake by: more of it where the ratio is above the tolerance, less where it is as far below."""
    return factor if ratio > tolerance else 1 / factor if ratio < 1 / tolerance else 1.0
