"""Batches of distributions over actions.

A sample is a function of the network's outputs and of noise that is drawn ahead. Samples are stored and learned from, so
`log_prob` takes them as `sample` returned them. If a head then maps them to bounds, `log_prob` is the log-density of the
mapped action.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


class Distribution(Protocol):
    """A batch of distributions over actions."""

    def sample(self, noise: Tensor) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...  # [B]
    def entropy(self) -> Tensor: ...  # [B]


# The logit of forbidden actions. Minus infinity times a probability of zero would be NaN. No noise can lift this number above
# the logit of an allowed action, and its exponential is exactly zero.
FORBIDDEN = -1e30


class Categorical:
    """One of n actions, given by logits [B, n] and, if not all actions are allowed, a mask [B, n]."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.log_probs = torch.log_softmax(logits if mask is None else logits.masked_fill(~mask, FORBIDDEN), -1)

    def sample(self, noise: Tensor) -> Tensor:
        """Return the index of the largest log-probability after adding Gumbel noise: an exact sample (Gumbel-max trick)."""
        return (self.log_probs + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Gaussian:
    """Independent components with mean [B, d] and log standard deviation [d] or [B, d]."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * scaled * scaled - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        per_row = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        return per_row.expand(self.mean.shape[:-1])


class MultiCategorical:
    """Independent choices, each one of sizes[i]: logits [B, sum(sizes)], actions [B, len(sizes)]."""

    def __init__(self, logits: Tensor, sizes: Sequence[int], mask: Tensor | None = None) -> None:
        self.sizes = list(sizes)
        masks = [None] * len(self.sizes) if mask is None else torch.split(mask, self.sizes, -1)
        self.parts = [
            Categorical(part, allowed) for part, allowed in zip(torch.split(logits, self.sizes, -1), masks, strict=True)
        ]

    def sample(self, noise: Tensor) -> Tensor:
        noises = torch.split(noise, self.sizes, -1)
        return torch.stack([part.sample(part_noise) for part, part_noise in zip(self.parts, noises, strict=True)], -1)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        return _sum([part.log_prob(chosen) for part, chosen in zip(self.parts, action.unbind(-1), strict=True)])

    def entropy(self) -> Tensor:
        return _sum([part.entropy() for part in self.parts])


class Bernoulli:
    """Independent bits: log-odds [B, n], actions 0 or 1. A mask [B, n * 2] says for each bit whether 0 and 1 are allowed."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.logits = logits
        if mask is not None:
            zero, one = mask.reshape(*logits.shape, 2).unbind(-1)
            self.logits = logits.masked_fill(~one, FORBIDDEN).masked_fill(~zero, -FORBIDDEN)

    def sample(self, noise: Tensor) -> Tensor:
        """Return 1 where the log-odds plus logistic noise are positive, which happens with probability sigmoid(log-odds)."""
        return (self.logits + noise > 0).float()

    def mode(self) -> Tensor:
        return (self.logits > 0).float()

    def log_prob(self, action: Tensor) -> Tensor:
        return logsigmoid(self.logits * (2 * action - 1)).sum(-1)

    def entropy(self) -> Tensor:
        return (softplus(self.logits) - self.logits * torch.sigmoid(self.logits)).sum(-1)


class SquashedGaussian(Gaussian):
    """low + width * (tanh(u) + 1) / 2 with a Gaussian u.

    The sample is u, because u can't be recovered from an action near the bounds, where tanh saturates. `log_prob` is exactly
    that of the action.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, log_width: Tensor) -> None:
        super().__init__(mean, log_std)
        self.log_width = log_width

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action) - self._log_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of u, which is exact, plus the mean of log(d action / du), which has no closed form.

        The mean is computed by Gauss-Hermite quadrature, so it and its gradient have no noise. The error per component is
        below 0.001 for standard deviations of u up to 2, and below 0.1 up to 7.4, the largest possible.
        """
        nodes, weights = (part.to(self.mean) for part in _quadrature())
        samples = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes  # [B, d, nodes]
        slopes = self._log_slope(samples.transpose(-1, -2))  # [B, nodes, d]
        return super().entropy() + (weights @ slopes).sum(-1)

    def _log_slope(self, u: Tensor) -> Tensor:
        """Return log(width / 2 * (1 - tanh(u)^2)), by softplus, which stays accurate for large |u|."""
        return self.log_width + math.log(2) - 2 * (u + softplus(-2 * u))


@functools.cache
def _quadrature(nodes: int = 32) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for the mean of a function of a standard normal variable."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(points), torch.from_numpy(weights / weights.sum())


# Marsaglia and Tsang's method accepts more than 95% of its proposals: fewer than one in 10^10 samples needs more than eight.
TRIES = 8


class Beta:
    """low + width * x with x from a Beta distribution whose parameters exceed 1, so that it has a single peak.

    The sample is x, in (0, 1); `log_prob` is that of the action.
    """

    EDGE = 1e-6  # smallest distance of x from 0 and 1, where the density may be zero

    def __init__(self, above_one: Tensor, log_width: Tensor) -> None:
        self.above_one, self.log_width = above_one, log_width  # [2, B, d]: alpha - 1 and beta - 1; [d]
        self.alpha, self.beta = (1 + above_one).unbind(0)

    def sample(self, noise: Tensor) -> Tensor:
        """Return a / (a + b) of two Gamma samples. If all proposals of one are rejected, it is alpha - 1/3, near the mode."""
        normal, uniform = noise.view(*noise.shape[:-1], 2, 2, TRIES, -1).unbind(-4)  # [B, 2, TRIES, d] each
        shape = 1 + self.above_one.movedim(0, -2).unsqueeze(-2) - 1 / 3  # [B, 2, 1, d]
        cube = (1 + normal * torch.rsqrt(9 * shape)) ** 3
        positive = cube.clamp(min=1e-30)
        limit = 0.5 * normal * normal + shape * (1 - cube + positive.log())
        accepted = (cube > 0) & (uniform.log() < limit)
        first = accepted.int().argmax(-2, keepdim=True)
        chosen = torch.where(accepted.any(-2, keepdim=True), cube.gather(-2, first), torch.ones_like(shape))
        gamma = (shape * chosen).squeeze(-2)
        return (gamma[..., 0, :] / gamma.sum(-2)).clamp(self.EDGE, 1 - self.EDGE)

    def mode(self) -> Tensor:
        left, right = (self.above_one + 1e-30).unbind(0)
        return left / (left + right)

    def log_prob(self, action: Tensor) -> Tensor:
        inside = action.clamp(self.EDGE, 1 - self.EDGE)
        left, right = self.above_one.unbind(0)
        density: Tensor = left * inside.log() + right * torch.log1p(-inside) - self._log_normalizer()
        return (density - self.log_width).sum(-1)

    def entropy(self) -> Tensor:
        left, right = self.above_one.unbind(0)
        surprise: Tensor = left * torch.digamma(self.alpha) + right * torch.digamma(self.beta)
        surprise = surprise - (left + right) * torch.digamma(self.alpha + self.beta)
        return (self._log_normalizer() - surprise + self.log_width).sum(-1)

    def _log_normalizer(self) -> Tensor:
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)


class ProductColumns(NamedTuple):
    """The columns of a product's actions and noise that belong to one of its parts."""

    action: slice
    noise: slice
    shape: tuple[int, ...]  # of one action of the part: () or (n,)
    dtype: torch.dtype

    def read(self, action: Tensor) -> Tensor:
        """Return the part's actions [B, *shape] from rows of the product."""
        start, stop = self.action.start, self.action.stop
        part = action.narrow(-1, start, stop - start) if self.shape else action.select(-1, start)
        return part if part.dtype is self.dtype else part.to(self.dtype)


class Product:
    """Independent parts, whose log-probabilities and entropies add up.

    An action is one row of floats, in which integers up to 2^24 are exact.
    """

    def __init__(self, parts: Sequence[Distribution], columns: Sequence[ProductColumns]) -> None:
        self.parts = list(zip(parts, columns, strict=True))

    def sample(self, noise: Tensor) -> Tensor:
        return self._row([part.sample(noise[..., columns.noise]) for part, columns in self.parts])

    def mode(self) -> Tensor:
        return self._row([part.mode() for part, _ in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        return _sum([part.log_prob(columns.read(action)) for part, columns in self.parts])

    def entropy(self) -> Tensor:
        return _sum([part.entropy() for part, _ in self.parts])

    def _row(self, actions: Sequence[Tensor]) -> Tensor:
        pairs = zip(actions, self.parts, strict=True)
        return torch.cat([a.float().unsqueeze(-1) if not columns.shape else a for a, (_, columns) in pairs], -1).float()


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(list(terms)).sum(0)
