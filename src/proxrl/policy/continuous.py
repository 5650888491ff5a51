"""Heads of Box action spaces: a Gaussian whose samples are clipped to the bounds, or distributions that end there."""

import math
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import softplus

from proxrl.errors import ProxRLError
from proxrl.policy.distributions import TRIES, Beta, Gaussian, SquashedGaussian
from proxrl.policy.heads import ActionLayout, Head

Std: TypeAlias = Literal["independent", "state", "fixed"]

# Of deviations that depend on the state, lest one odd state overflow; --log-std-init has the same.
LOG_STD_RANGE = -10.0, 2.0


class GaussianHead(Head):
    """A mean from the network, and a deviation that is learnt but does not depend on the state (continuous details 1-3), or
    does (`state`), or is never learnt (`fixed`).

    The logarithm of the deviation is the parameter: the deviation itself could be stepped below zero.
    """

    choices = 0
    log_std: Tensor

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std) -> None:
        super().__init__()
        size = math.prod(space.shape)
        initial = torch.full((size,), log_std_init)
        if std == "independent":
            self.log_std = nn.Parameter(initial)
        else:
            self.register_buffer("log_std", initial)
        self.std = std
        self.inputs, self.noise_size = 2 * size if std == "state" else size, size
        self.layout = ActionLayout((size,), np.float32)
        self.env_shape, self.env_dtype = space.shape, space.dtype
        self.low, self.high = space.low.reshape(-1), space.high.reshape(-1)

    def mean_and_deviation(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, size]; log deviation [size], or [B, size] by state, where the network gives its distance from the start."""
        if self.std != "state":
            return inputs, self.log_std
        mean, offset = inputs.chunk(2, -1)
        return mean, (self.log_std + offset).clamp(*LOG_STD_RANGE)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Gaussian:
        return Gaussian(*self.mean_and_deviation(inputs))

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.standard_normal((steps, self.noise_size), np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Clip to the bounds (continuous detail 5). minimum and maximum take half the time of clip on a few numbers."""
        clipped: NDArray[Any] = np.minimum(np.maximum(action, self.low), self.high)
        return clipped.reshape(len(action), *self.env_shape).astype(self.env_dtype, copy=False)


class Bounds:
    """From the unit interval to the bounds of a Box, in double precision: the width of a wide one overflows a single."""

    def __init__(self, space: spaces.Box, distribution: str) -> None:
        self.low, self.high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
        with np.errstate(over="ignore", invalid="ignore"):
            self.width = self.high - self.low
        if not (np.isfinite(self.width) & (self.width > 0)).all():
            raise ProxRLError(
                f"--action-distribution {distribution} needs finite bounds that are apart, but the action space is {space};"
                " bound it by gymnasium.wrappers.RescaleAction, or use --action-distribution clip"
            )
        self.shape, self.dtype = space.shape, space.dtype

    @property
    def log_width(self) -> Tensor:
        return torch.from_numpy(np.log(self.width)).float()

    def place(self, unit: NDArray[np.floating]) -> NDArray[np.floating]:
        """Rounding must not carry an action over its bound."""
        placed = np.minimum(np.maximum(self.low + self.width * unit, self.low), self.high)
        return placed.reshape(len(unit), *self.shape).astype(self.dtype)


class TanhHead(GaussianHead):
    """A Gaussian squashed by tanh. Its most likely action is taken to be the squashed mean, which is the median."""

    log_width: Tensor

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std) -> None:
        super().__init__(space, log_std_init, std)
        self.bounds = Bounds(space, "tanh")
        self.register_buffer("log_width", self.bounds.log_width, persistent=False)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> SquashedGaussian:
        return SquashedGaussian(*self.mean_and_deviation(inputs), self.log_width)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return self.bounds.place((np.tanh(action.astype(np.float64)) + 1) / 2)


class BetaHead(Head):
    """A Beta distribution over each component, its parameters 1 + softplus of the outputs: one peak, maybe at a bound."""

    choices = 0
    log_width: Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.bounds = Bounds(space, "beta")
        size = math.prod(space.shape)
        self.inputs, self.noise_size = 2 * size, 2 * 2 * TRIES * size
        self.layout = ActionLayout((size,), np.float32)
        self.register_buffer("log_width", self.bounds.log_width, persistent=False)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Beta:
        return Beta(torch.stack(softplus(inputs).chunk(2, -1)), self.log_width)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        """Normal numbers for the tries of two Gamma samples, then as many uniform ones to accept them by."""
        half = steps, self.noise_size // 2
        return np.concatenate([rng.standard_normal(half, np.float32), 1 - rng.random(half, np.float32)], axis=1)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return self.bounds.place(action.astype(np.float64))
