"""Distributions over actions, in batches.

Each samples from noise that is drawn ahead: the sample is a function of the noise. It is also what is stored and learnt
from, so `log_prob` takes it as `sample` gave it; where a head maps it on to bounds, the density is that of the mapped action.
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


# The log-probability of what a mask forbids. Not minus infinity, which times a probability of zero is no number; adding noise
# to it can't lift it over anything that is allowed, and its exponential is exactly zero.
FORBIDDEN = -1e30


class Categorical:
    """One of n actions, by unnormalised log-probabilities [B, n] and, where not all are allowed, a mask [B, n]."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.log_probs = torch.log_softmax(logits if mask is None else logits.masked_fill(~mask, FORBIDDEN), -1)

    def sample(self, noise: Tensor) -> Tensor:
        """Adding Gumbel noise to log-probabilities makes the largest one a fair draw."""
        return (self.log_probs + noise).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class Gaussian:
    """Independent components: mean [B, d] and log deviation [d] or [B, d]."""

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
    """Independent choices, one of sizes[i] each: unnormalised log-probabilities [B, sum of sizes], actions [B, len(sizes)]."""

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
    """Independent yes or no: log-odds [B, n], actions 0 or 1; a mask [B, n * 2] tells for each whether no and yes are allowed."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.logits = logits
        if mask is not None:
            no, yes = mask.reshape(*logits.shape, 2).unbind(-1)
            self.logits = logits.masked_fill(~yes, FORBIDDEN).masked_fill(~no, -FORBIDDEN)

    def sample(self, noise: Tensor) -> Tensor:
        """Log-odds plus logistic noise lie above zero as often as the odds say."""
        return (self.logits + noise > 0).float()

    def mode(self) -> Tensor:
        return (self.logits > 0).float()

    def log_prob(self, action: Tensor) -> Tensor:
        return logsigmoid(self.logits * (2 * action - 1)).sum(-1)

    def entropy(self) -> Tensor:
        return (softplus(self.logits) - self.logits * torch.sigmoid(self.logits)).sum(-1)


class SquashedGaussian(Gaussian):
    """low + width * (tanh(u) + 1) / 2 with a Gaussian u. The sample is u: from the action itself it could not be told near
    the bounds, where tanh has no digits left. `log_prob` is exactly that of the action.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, log_width: Tensor) -> None:
        super().__init__(mean, log_std)
        self.log_width = log_width

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action) - self._log_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        """That of u, which is exact, plus the mean of log(d action / du), which has no closed form: it is taken at the nodes
        of Gauss-Hermite quadrature. So there is no noise in it, gradients included; the error per component stays below
        0.001 for deviations of u up to 2, and below 0.1 up to 7.4, the largest there is.
        """
        nodes, weights = (part.to(self.mean) for part in _quadrature())
        samples = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes  # [B, d, nodes]
        slopes = self._log_slope(samples.transpose(-1, -2))  # [B, nodes, d]
        return super().entropy() + (weights @ slopes).sum(-1)

    def _log_slope(self, u: Tensor) -> Tensor:
        """log(width / 2 * (1 - tanh(u)^2)), of which softplus keeps all digits however far out u is."""
        return self.log_width + math.log(2) - 2 * (u + softplus(-2 * u))


@functools.cache
def _quadrature(nodes: int = 32) -> tuple[Tensor, Tensor]:
    """Where and with which weights to average a function of a standard normal variable."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(places), torch.from_numpy(weights / weights.sum())


# Marsaglia and Tsang's method accepts more than 95 of 100 tries: after eight, fewer than one in 10^10 samples has none.
TRIES = 8


class Beta:
    """low + width * x with x from a Beta distribution whose parameters exceed 1, so that it has one peak.

    The sample is x, in (0, 1); `log_prob` is that of the action.
    """

    EDGE = 1e-6  # x keeps this distance from 0 and 1, where the density may be zero

    def __init__(self, above_one: Tensor, log_width: Tensor) -> None:
        self.above_one, self.log_width = above_one, log_width  # [2, B, d] by how much alpha and beta exceed 1, [d]
        self.alpha, self.beta = (1 + above_one).unbind(0)

    def sample(self, noise: Tensor) -> Tensor:
        """By two Gamma samples. Where no try is accepted, the Gamma sample is its distribution's near-peak alpha - 1/3."""
        normal, uniform = noise.view(*noise.shape[:-1], 2, 2, TRIES, -1).unbind(-4)  # [B, 2, tries, d] each
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
        density: Tensor = left * inside.log() + right * torch.log1p(-inside) - self._log_normaliser()
        return (density - self.log_width).sum(-1)

    def entropy(self) -> Tensor:
        left, right = self.above_one.unbind(0)
        surprise: Tensor = left * torch.digamma(self.alpha) + right * torch.digamma(self.beta)
        surprise = surprise - (left + right) * torch.digamma(self.alpha + self.beta)
        return (self._log_normaliser() - surprise + self.log_width).sum(-1)

    def _log_normaliser(self) -> Tensor:
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)


class ProductColumns(NamedTuple):
    """The columns of a product's actions and noise that belong to one of its parts."""

    action: slice
    noise: slice
    shape: tuple[int, ...]  # of one action of the part: () or (n,)
    dtype: torch.dtype

    def read(self, action: Tensor) -> Tensor:
        """Return the part's actions [B, *shape] from rows of the product."""
        part = action.narrow(-1, self.action.start, self.action.stop - self.action.start)
        part = part if self.shape else part.squeeze(-1)
        return part if part.dtype is self.dtype else part.to(self.dtype)


class Product:
    """Independent parts: log-probabilities and entropies add up. Actions are one float row; whole numbers are exact in it."""

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
