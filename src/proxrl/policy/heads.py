"""Heads: modules from a network's outputs to a distribution over actions. This file has their interface and the discrete ones.

Actions are sampled from noise that is drawn ahead, so each environment can have its own random stream. A head also converts
the action that it sampled to the one that the environment receives: only the latter is clipped, and the former is what the
policy learns from.
"""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from proxrl.common.tree import tree_map
from proxrl.envs.spaces import choices
from proxrl.policy.distributions import Bernoulli, Categorical, Distribution, MultiCategorical
from proxrl.types import Array, Tree


@dataclass(frozen=True)
class ActionLayout:
    """How sampled actions are stored."""

    shape: tuple[int, ...]  # of one action
    dtype: type[np.generic]


class Head(nn.Module, abc.ABC):
    """A module from a network's outputs, and a mask if there is one, to a Distribution."""

    inputs: int  # outputs of the network per action
    choices: int  # bits of a mask
    noise_size: int  # random numbers per action
    noise_interval = 1  # steps of an environment for which its random numbers stay the same
    means: Sequence[int] = ()  # which of the inputs are means of a Gaussian
    layout: ActionLayout
    env_shape: tuple[int, ...] = ()  # of one action in the space
    env_dtype: torch.dtype
    env_array_dtype: np.dtype  # the same for numpy, if `takes_arrays`
    # Whether `to_env` takes numpy arrays as well as tensors, so that `env_actions` need not convert them. In the step loop, the
    # torch calls on a few numbers take 20 us, those of numpy 5.
    takes_arrays = False
    # Names of the tensors that `to_env` needs. They are plain attributes, and stay with the actions instead of the networks:
    # the actions of a policy on a GPU are converted on the host if the environments are there, and not all devices have float64.
    constants: tuple[str, ...] = ()

    @abc.abstractmethod
    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Distribution: ...

    @abc.abstractmethod
    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        """Draw the random numbers of `steps` actions, [steps, noise_size]."""

    @abc.abstractmethod
    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Tree:
        """Convert sampled actions [N, ...] to tensors of the action space's structure, shapes and data types.

        Training, evaluation and exported files all use it. It runs on the device of `action` and uses no parameters. Actions are
        scaled to bounds in double precision; exported files use single, which more runtimes have.
        """

    @abc.abstractmethod
    def from_env(self, action: Any) -> Tensor:
        """Return the samples of actions, given as tensors of whole numbers or doubles on the host: the inverse of `to_env`, up to
        clipping. Actions on a bound of a bounded distribution, whose density is zero or infinite there, are moved inside.
        """

    def in_space(self, action: Array) -> Array:
        """Return actions [N, n] in the shape and data type of the space; an array is copied. For tensors, a call that changes
        nothing would still take time.
        """
        if self.env_shape != self.layout.shape:
            action = action.reshape(action.shape[0], *self.env_shape)
        if isinstance(action, np.ndarray):
            return action.astype(self.env_array_dtype)
        return action if action.dtype is self.env_dtype else action.to(self.env_dtype)

    def move_constants(self, device: torch.device) -> None:
        for name in self.constants:
            setattr(self, name, getattr(self, name).to(device))


def env_actions(head: Head, action: NDArray[Any]) -> Tree:
    """Apply `head.to_env` to an array. The result is a tree of new arrays: an environment may write to its actions."""
    if head.takes_arrays:
        return head.to_env(action)
    result = head.to_env(torch.from_numpy(action))
    return result.numpy() if isinstance(result, Tensor) else tree_map(Tensor.numpy, result)


def torch_dtype(dtype: DTypeLike) -> torch.dtype:
    """Return torch's equivalent of a NumPy data type, and float64 for wider floats, which torch does not have."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return torch.float64


class CategoricalHead(Head):
    """The head of Discrete action spaces."""

    takes_arrays = True

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__()
        self.inputs = self.choices = self.noise_size = int(space.n)
        self.layout = ActionLayout((), np.int64)
        self.start, self.env_dtype, self.env_array_dtype = int(space.start), torch_dtype(space.dtype), np.dtype(space.dtype)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(inputs, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Array:
        return self.in_space(action + self.start if self.start else action)

    def from_env(self, action: Tensor) -> Tensor:
        return action - self.start


class MultiCategoricalHead(Head):
    """The head of MultiDiscrete action spaces."""

    constants = ("start",)

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes: list[int] = space.nvec.reshape(-1).tolist()
        self.inputs = self.choices = self.noise_size = sum(self.sizes)
        self.layout = ActionLayout((len(self.sizes),), np.int64)
        self.start = torch.from_numpy(space.start.reshape(-1).astype(np.int64))
        self.env_shape, self.env_dtype = space.shape, torch_dtype(space.dtype)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        return MultiCategorical(inputs, self.sizes, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.gumbel(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Array:
        if self.start.device != action.device:
            self.move_constants(action.device)
        return self.in_space(action + self.start)

    def from_env(self, action: Tensor) -> Tensor:
        return action.flatten(1) - self.start.to(action.device)


class BernoulliHead(Head):
    """The head of MultiBinary action spaces."""

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__()
        self.inputs = self.noise_size = math.prod(space.shape)
        self.choices = choices(space)
        self.layout = ActionLayout((self.inputs,), np.float32)
        self.env_shape, self.env_dtype = space.shape, torch_dtype(space.dtype)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Bernoulli:
        return Bernoulli(inputs, mask)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return rng.logistic(size=(steps, self.noise_size)).astype(np.float32)

    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Array:
        return self.in_space(action)

    def from_env(self, action: Tensor) -> Tensor:
        return action.flatten(1).float()
