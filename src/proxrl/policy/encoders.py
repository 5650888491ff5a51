"""Observations in, features out."""

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
    """Orthogonal weights of this gain and zero biases: small gains keep the first policy near uniform."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Fully connected layers with an activation after each, on all entries of an observation side by side."""

    def __init__(self, space: gymnasium.Space, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        sizes = [spaces.flatdim(space), *hidden_sizes]
        self.activation = activation
        self.layers = nn.ModuleList(orthogonal(nn.Linear(inputs, outputs), math.sqrt(2)) for inputs, outputs in pairwise(sizes))
        self.function = ACTIVATIONS[activation]()
        self.output_size = sizes[-1]

    def forward(self, obs: Tree) -> Tensor:
        features = side_by_side(obs)
        for layer in self.layers:
            features = self.function(layer(features))
        return features


def side_by_side(obs: Tree) -> Tensor:
    """Every entry of an observation in one row [B, size]."""
    # Sizes in full: a rank's share of a minibatch may have no row, and then -1 says nothing. Here and elsewhere rows are counted
    # by shape[0]: len() is a plain number, which torch.export would take for the only one there can be.
    rows = [_floats(leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))) for leaf in tree_leaves(obs)]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _floats(rows: Tensor) -> Tensor:
    return rows.float() / 255 if rows.dtype == torch.uint8 else rows.float()  # what is bytes here is an image


class Select(nn.Module):
    """An encoder that sees some keys of the observation, and no others."""

    def __init__(self, keys: Sequence[str], encoder: nn.Module) -> None:
        super().__init__()
        self.keys, self.encoder = tuple(keys), encoder

    def forward(self, obs: dict[str, Any]) -> Tensor:
        features: Tensor = self.encoder({key: obs[key] for key in self.keys})
        return features


def select_space(space: gymnasium.Space, keys: Sequence[str], flag: str) -> spaces.Dict:
    """The part of a Dict space that an encoder with these keys sees."""
    if not isinstance(space, spaces.Dict):
        raise ProxRLError(f"{flag} chooses keys of a Dict observation, but the observation space is {space}; leave it out")
    unknown = [key for key in keys if key not in space.spaces]
    if unknown:
        raise ProxRLError(f"{flag} names {', '.join(unknown)}, but the observation has the keys {', '.join(space)}")
    return spaces.Dict([(key, space[key]) for key in keys])
