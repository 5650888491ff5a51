"""Preprocessing of observations, done once per rollout: conversion to floats, whitening, and one-hot vectors for discrete values.

Observations keep their structure: the result of a Dict is a dict, and that of a Box has the same shape. Networks are built for
`output_space`, which describes the preprocessed observations.
"""

import abc
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.envs.spaces import Masked, is_image, refuse
from proxrl.policy.statistics import EPSILON, RunningMoments
from proxrl.types import Tree
from proxrl.world.api import World


class Preprocess(nn.Module, abc.ABC):
    """A module from rows of observations [B, ...] to the inputs of networks."""

    output_space: gymnasium.Space

    @abc.abstractmethod
    def forward(self, obs: Any) -> Any: ...

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        """Add a rollout's obs [T + 1, N, ...] to the statistics, if there are any; `valid` is [T, N]. Called after the update."""


class Floats(Preprocess):
    """Converts numbers of any type to floats."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = _box(space.shape or ())

    def forward(self, obs: Tensor) -> Tensor:
        return obs.float()


class Pixels(Preprocess):
    """Leaves images as bytes: the network scales one minibatch at a time, and floats would take four times the memory."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = space

    def forward(self, obs: Any) -> Any:
        return obs


class Whiten(Preprocess):
    """Whitens numbers by running statistics, then clips them (continuous details 6 and 7)."""

    def __init__(self, space: gymnasium.Space, clip: float | None) -> None:
        super().__init__()
        shape = space.shape or ()
        self.moments = RunningMoments(shape)
        self.clip = math.inf if clip is None else clip
        self.output_space = _box(shape, self.clip)

    def forward(self, obs: Tensor) -> Tensor:
        scale = torch.rsqrt(self.moments.variance + EPSILON)
        return ((obs.float() - self.moments.mean) * scale).clamp(-self.clip, self.clip)

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        self.moments.merge(obs[:-1][valid], world)


class OneHot(Preprocess):
    """Converts discrete observations to one-hot vectors; those of a MultiDiscrete are concatenated."""

    start: Tensor
    begin: Tensor

    def __init__(self, sizes: NDArray[np.integer], start: NDArray[np.integer]) -> None:
        super().__init__()
        ends = np.cumsum(sizes)
        self.width = int(ends[-1]) if len(ends) else 0
        self.register_buffer("start", torch.from_numpy(start.astype(np.int64)), persistent=False)
        self.register_buffer("begin", torch.from_numpy((ends - sizes).astype(np.int64)), persistent=False)
        self.output_space = _box((self.width,), 1.0)

    def forward(self, obs: Tensor) -> Tensor:
        columns = obs.reshape(obs.shape[0], len(self.start)).long() - self.start + self.begin
        return torch.zeros(obs.shape[0], self.width, device=obs.device).scatter_(1, columns, 1.0)


class Mask(Preprocess):
    """Converts action masks to booleans. The head uses them, not the networks."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = space

    def forward(self, obs: Tensor) -> Tensor:
        return obs.bool()


class Branches(Preprocess):
    """Preprocesses the entries of Dict and Tuple observations, each in its own way."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: Mapping[Any, Preprocess]) -> None:
        super().__init__()
        self.keys = list(parts)
        self.as_tuple = isinstance(space, spaces.Tuple)
        # By number, because a key may contain a dot and the name of a module must not.
        self.parts: Any = nn.ModuleList(parts.values())
        outputs = [part.output_space for part in parts.values()]
        self.output_space = spaces.Tuple(outputs) if self.as_tuple else spaces.Dict(list(zip(self.keys, outputs, strict=True)))

    def forward(self, obs: Any) -> Any:
        results = [part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)]
        return tuple(results) if self.as_tuple else dict(zip(self.keys, results, strict=True))

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        for key, part in zip(self.keys, self.parts, strict=True):
            part.merge(obs[key], valid, world)


def make_preprocess(space: gymnasium.Space, normalize: bool, clip: float | None) -> Preprocess:
    """Return the preprocessing of an observation space; `normalize` whitens every Box but images."""
    match space:
        case Masked():
            observation = make_preprocess(space["observation"], normalize, clip)
            return Branches(space, {"observation": observation, "action_mask": Mask(space["action_mask"])})
        case spaces.Dict():
            return Branches(space, {key: make_preprocess(part, normalize, clip) for key, part in space.items()})
        case spaces.Tuple():
            return Branches(space, {index: make_preprocess(part, normalize, clip) for index, part in enumerate(space)})
        case spaces.Discrete():
            return OneHot(np.array([space.n]), np.array([space.start]))
        case spaces.MultiDiscrete():
            return OneHot(space.nvec.reshape(-1), space.start.reshape(-1))
        case spaces.MultiBinary():
            return Floats(space)
        case spaces.Box() if is_image(space):
            return Pixels(space)
        case spaces.Box():
            return Whiten(space, clip) if normalize else Floats(space)
    raise refuse(space)


def _box(shape: tuple[int, ...], limit: float = np.inf) -> spaces.Box:
    return spaces.Box(-limit, limit, shape, np.float32)
