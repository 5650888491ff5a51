"""Heads of Box action spaces: a Gaussian whose samples are clipped to the bounds, and distributions that have these bounds."""

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
from proxrl.policy.heads import ActionLayout, Head, torch_dtype
from proxrl.types import Array

Std: TypeAlias = Literal["independent", "state", "fixed"]

# Limits of log standard deviations that depend on the state, so that no state can make them overflow. --log-std-init has the
# same limits.
LOG_STD_RANGE = -10.0, 2.0


class BoxHead(Head):
    """What the heads of Box action spaces share: the bounds."""

    choices = 0
    constants: tuple[str, ...] = ("low", "high")
    log_width: Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.layout = ActionLayout((math.prod(space.shape),), np.float32)
        self.env_shape, self.env_dtype, self.env_array_dtype = space.shape, torch_dtype(space.dtype), np.dtype(space.dtype)
        self.array_bounds = space.low.reshape(-1), space.high.reshape(-1)
        self.low, self.high = self._constant(space.low), self._constant(space.high)

    def require_bounds(self, space: spaces.Box, distribution: str) -> None:
        """Prepare `scaled`; raise an error if the space is not bounded."""
        low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
        with np.errstate(over="ignore", invalid="ignore"):
            width = high - low
        if not (np.isfinite(width) & (width > 0)).all():
            raise ProxRLError(
                f"--action-distribution {distribution} needs finite bounds with low < high, but the action space is {space};"
                " bound it with gymnasium.wrappers.RescaleAction, or use --action-distribution clip"
            )
        self.constants = ("low", "high", "lowest", "width")
        self.lowest, self.width = torch.from_numpy(low), torch.from_numpy(width)
        self.fits_single = bool((width <= np.finfo(np.float32).max).all())  # the width of a wide Box overflows
        self.register_buffer("log_width", torch.from_numpy(np.log(width)).float(), persistent=False)

    def _constant(self, values: NDArray[Any]) -> Tensor:
        """Return one row of numbers in the precision of the space, but at least in single precision."""
        return torch.from_numpy(values.reshape(-1).astype(np.float64)).to(torch.promote_types(self.env_dtype, torch.float32))

    def clipped(self, action: Array) -> Array:
        """Return actions [N, size] clipped to the bounds, in the shape and data type of the space."""
        if isinstance(action, np.ndarray):
            low, high = self.array_bounds
            return self.in_space(np.minimum(np.maximum(action, low), high))  # on a few numbers, half the time of np.clip
        if self.low.device != action.device:
            self.move_constants(action.device)
        return self.in_space(action.clamp(self.low, self.high))

    def scaled(self, unit: Tensor) -> Array:
        """Return actions [N, size] moved from [0, 1] to the bounds, in the shape and data type of the space."""
        if self.low.device != unit.device:
            self.move_constants(unit.device)
        return self.clipped(self.lowest.to(unit.dtype) + self.width.to(unit.dtype) * unit)  # rounding could exceed a bound

    def unit(self, action: Tensor) -> Tensor:
        """Return actions of the space, in double precision, moved from the bounds to (0, 1)."""
        rows = action.reshape(len(action), -1)
        return ((rows - self.lowest.to(rows.device)) / self.width.to(rows.device)).clamp(Beta.EDGE, 1 - Beta.EDGE)

    def in_precision(self, action: Tensor, precision: torch.dtype) -> Tensor:
        """Return actions in the precision to scale them in: double if single has no room for the bounds."""
        return action.to(torch.promote_types(self.env_dtype, precision if self.fits_single else torch.float64))


class GaussianHead(BoxHead):
    """A Gaussian with the mean from the network, whose samples are clipped to the bounds (continuous details 1-3 and 5).

    The standard deviation is learned and does not depend on the state (`independent`), or comes from the network too (`state`),
    or is never learned (`fixed`). The parameter is its logarithm: an optimizer could step the standard deviation itself below
    zero.
    """

    log_std: Tensor
    takes_arrays = True

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std) -> None:
        super().__init__(space)
        (size,) = self.layout.shape
        initial = torch.full((size,), log_std_init)
        if std == "independent":
            self.log_std = nn.Parameter(initial)
        else:
            self.register_buffer("log_std", initial)
        self.std = std
        self.inputs, self.noise_size = 2 * size if std == "state" else size, size
        self.means = range(size)

    def mean_and_log_std(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean [B, size] and the log standard deviation [size].

        With `state` the latter is [B, size], and the network gives its difference from the initial value.
        """
        if self.std != "state":
            return inputs, self.log_std
        mean, offset = inputs.chunk(2, -1)
        return mean, (self.log_std + offset).clamp(*LOG_STD_RANGE)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Gaussian:
        return Gaussian(*self.mean_and_log_std(inputs))

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.standard_normal((steps, self.noise_size), np.float32)

    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Array:
        return self.clipped(action)

    def from_env(self, action: Tensor) -> Tensor:
        return action.reshape(len(action), -1).float()


class TanhHead(GaussianHead):
    """A Gaussian squashed by tanh. Its mode is taken to be the squashed mean, which is the median."""

    takes_arrays = False

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std) -> None:
        super().__init__(space, log_std_init, std)
        self.require_bounds(space, "tanh")

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> SquashedGaussian:
        return SquashedGaussian(*self.mean_and_log_std(inputs), self.log_width)

    def to_env(self, action: Tensor, precision: torch.dtype = torch.float64) -> Array:
        return self.scaled((torch.tanh(self.in_precision(action, precision)) + 1) / 2)

    def from_env(self, action: Tensor) -> Tensor:
        return torch.atanh(2 * self.unit(action) - 1).float()


class BetaHead(BoxHead):
    """A Beta distribution of each component, with the parameters 1 + softplus(outputs): a single peak, possibly at a bound."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space)
        self.require_bounds(space, "beta")
        (size,) = self.layout.shape
        self.inputs, self.noise_size = 2 * size, 2 * 2 * TRIES * size

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Beta:
        return Beta(torch.stack(softplus(inputs).chunk(2, -1)), self.log_width)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        """Draw normal numbers for the proposals of two Gamma samples, then as many uniform ones to accept them by."""
        half = steps, self.noise_size // 2
        return np.concatenate([rng.standard_normal(half, np.float32), 1 - rng.random(half, np.float32)], axis=1)

    def to_env(self, action: Tensor, precision: torch.dtype = torch.float64) -> Array:
        return self.scaled(self.in_precision(action, precision))

    def from_env(self, action: Tensor) -> Tensor:
        return self.unit(action).float()
