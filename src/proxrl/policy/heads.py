"""A network's outputs in, distributions over actions out: what heads share, and those of discrete actions.

Actions are made from noise that is drawn ahead, so each environment can have a random stream of its own. A head also knows
the way from the action it sampled to the one the environment receives: only the latter is clipped, the former is what is
learnt from.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.envs.spaces import choices
from proxrl.policy.distributions import Bernoulli, Categorical, Distribution, MultiCategorical
from proxrl.types import Tree


@dataclass(frozen=True)
class ActionLayout:
    """How sampled actions are stored."""

    shape: tuple[int, ...]  # of one action
    dtype: type[np.generic]


class Head(nn.Module):
    """What every head offers besides being a module from a network's outputs, and maybe a mask, to a Distribution."""

    inputs: int  # numbers per action that the network gives
    choices: int  # bits of a mask
    noise_size: int  # random numbers per action
    layout: ActionLayout

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Distribution:
        raise NotImplementedError

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        """[steps, noise_size]"""
        raise NotImplementedError

    def to_env(self, action: NDArray[Any]) -> Tree:
        """Actions [N, ...] as the space has them, from stored ones."""
        raise NotImplementedError


class CategoricalHead(Head):
    """For Discrete action spaces."""

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.inputs = self.choices = self.noise_size = int(space.n)
        self.start, self.env_dtype = int(space.start), np.dtype(space.dtype)
        self.layout = ActionLayout((), np.int64)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(inputs, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return (action + self.start if self.start else action).astype(self.env_dtype, copy=False)


class MultiCategoricalHead(Head):
    """For MultiDiscrete action spaces."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes: list[int] = space.nvec.reshape(-1).tolist()
        self.inputs = self.choices = self.noise_size = sum(self.sizes)
        self.layout = ActionLayout((len(self.sizes),), np.int64)
        self.start, self.env_shape, self.env_dtype = space.start.reshape(-1).astype(np.int64), space.shape, space.dtype

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        return MultiCategorical(inputs, self.sizes, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return (action + self.start).reshape(len(action), *self.env_shape).astype(self.env_dtype)


class BernoulliHead(Head):
    """For MultiBinary action spaces."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.inputs = self.noise_size = math.prod(space.shape)
        self.choices = choices(space)
        self.layout = ActionLayout((self.inputs,), np.float32)
        self.env_shape, self.env_dtype = space.shape, space.dtype

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Bernoulli:
        return Bernoulli(inputs, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.logistic(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: NDArray[Any]) -> NDArray[Any]:
        return action.reshape(len(action), *self.env_shape).astype(self.env_dtype)
