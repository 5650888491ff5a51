"""Features in, distributions over actions out.

Actions are made from noise that is drawn ahead, so each environment can have a random stream of its own. A head also knows
the way from the action it sampled to the one the environment receives: only the latter is clipped, the former is what is
learnt from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.errors import ProxRLError
from proxrl.policy.encoders import orthogonal

# Small enough that the first policy is nearly uniform whatever the features (implementation detail 2).
ACTION_GAIN = 0.01


class Distribution(Protocol):
    """A batch of distributions over actions."""

    def sample(self, noise: Tensor) -> Tensor: ...
    def mode(self) -> Tensor: ...
    def log_prob(self, action: Tensor) -> Tensor: ...  # [B]
    def entropy(self) -> Tensor: ...  # [B]


class Categorical:
    """One of n actions, by unnormalised log-probabilities [B, n]."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = torch.log_softmax(logits, -1)

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
    """Independent components: mean [B, d] and log deviation [d]."""

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


@dataclass(frozen=True)
class ActionLayout:
    """How sampled actions are stored."""

    shape: tuple[int, ...]  # of one action
    dtype: type[np.generic]


class ActionHead(Protocol):
    """What every head offers besides being a module from features to a Distribution."""

    layout: ActionLayout

    def __call__(self, features: Tensor) -> Distribution: ...
    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]: ...  # [steps, ...]
    def to_env(self, action: NDArray[Any]) -> NDArray[Any]: ...


class CategoricalHead(nn.Module):
    """For Discrete action spaces."""

    def __init__(self, features: int, space: gymnasium.spaces.Discrete) -> None:
        super().__init__()
        self.linear = orthogonal(nn.Linear(features, int(space.n)), ACTION_GAIN)
        self.start = int(space.start)
        self.layout = ActionLayout((), np.int64)

    def forward(self, features: Tensor) -> Categorical:
        return Categorical(self.linear(features))

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.gumbel(size=(steps, self.linear.out_features)).astype(np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return action + self.start if self.start else action


class GaussianHead(nn.Module):
    """For Box action spaces: a mean from the features, a deviation that does not depend on them (continuous details 1-3).

    The logarithm of the deviation is the parameter: the deviation itself could be stepped below zero.
    """

    def __init__(self, features: int, space: gymnasium.spaces.Box, log_std_init: float) -> None:
        super().__init__()
        size = math.prod(space.shape)
        self.linear = orthogonal(nn.Linear(features, size), ACTION_GAIN)
        self.log_std = nn.Parameter(torch.full((size,), log_std_init))
        self.layout = ActionLayout((size,), np.float32)
        self.env_shape: Sequence[int] = space.shape
        self.low, self.high = space.low.reshape(-1), space.high.reshape(-1)

    def forward(self, features: Tensor) -> Gaussian:
        return Gaussian(self.linear(features), self.log_std)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.standard_normal((steps, *self.layout.shape), np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        """Clip to the bounds (continuous detail 5). minimum and maximum take half the time of clip on a few numbers."""
        clipped: NDArray[Any] = np.minimum(np.maximum(action, self.low), self.high)
        return clipped.reshape(len(action), *self.env_shape)


def make_head(features: int, space: gymnasium.Space, log_std_init: float) -> CategoricalHead | GaussianHead:
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalHead(features, space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(features, space, log_std_init)
    raise ProxRLError(f"the action space {space} is not supported; wrap the environment so that it is Discrete or a float Box")
