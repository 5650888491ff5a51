"""Encoders: from preprocessed observations to features. Those of images are in image_encoders.py."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.common.tree import tree_leaves
from proxrl.errors import ProxRLError
from proxrl.types import Tree

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}


Layer = TypeVar("Layer", bound=nn.Linear | nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Initialize a layer with orthogonal weights of this gain and zero biases, and return it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Fully connected layers with an activation after each, on the concatenation of all entries of an observation."""

    def __init__(self, space: gymnasium.Space, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        sizes = [spaces.flatdim(space), *hidden_sizes]
        self.activation = activation
        self.layers = nn.ModuleList(orthogonal(nn.Linear(inputs, outputs), math.sqrt(2)) for inputs, outputs in pairwise(sizes))
        self.function = ACTIVATIONS[activation]()
        self.output_size = sizes[-1]

    def forward(self, obs: Tree) -> Tensor:
        features = concatenated(obs)
        for layer in self.layers:
            features = self.function(layer(features))
        return features


def concatenated(obs: Tree) -> Tensor:
    """Return all entries of observations as one tensor [B, size]."""
    # The size is computed because -1 is ambiguous without rows, and a rank's share of a minibatch may have none. Here and
    # elsewhere the number of rows is shape[0]: torch.export would take len(), a plain integer, for a constant.
    rows = [_floats(leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))) for leaf in tree_leaves(obs)]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _floats(rows: Tensor) -> Tensor:
    return rows.float() / 255 if rows.dtype == torch.uint8 else rows.float()  # only images are still bytes here


class Select(nn.Module):
    """An encoder of only some keys of the observation."""

    def __init__(self, keys: Sequence[str], encoder: nn.Module) -> None:
        super().__init__()
        self.keys, self.encoder = tuple(keys), encoder

    def forward(self, obs: dict[str, Any]) -> Tensor:
        features: Tensor = self.encoder({key: obs[key] for key in self.keys})
        return features


def select_space(space: gymnasium.Space, keys: Sequence[str], flag: str) -> spaces.Dict:
    """Return the part of a Dict space that has these keys; `flag` is named in errors."""
    if not isinstance(space, spaces.Dict):
        raise ProxRLError(f"{flag} chooses keys of a Dict observation, but the observation space is {space}; leave it out")
    unknown = [key for key in keys if key not in space.spaces]
    if unknown:
        raise ProxRLError(f"{flag} names {', '.join(unknown)}, but the observation has the keys {', '.join(space)}")
    return spaces.Dict([(key, space[key]) for key in keys])
