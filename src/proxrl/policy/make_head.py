"""`make_head` chooses the head of an action space. The head of a Dict or Tuple is the product of its leaves' heads."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.config.config import ACTION
from proxrl.config.unused import changed_settings, reasons_for_no_effect
from proxrl.envs.spaces import space_tree
from proxrl.errors import ProxRLError
from proxrl.policy.continuous_heads import BetaHead, GaussianHead, TanhHead
from proxrl.policy.distributions import Product, ProductColumns
from proxrl.policy.heads import ActionLayout, BernoulliHead, CategoricalHead, Head, MultiCategoricalHead, torch_dtype
from proxrl.types import Array, Tree

# Integers up to this are exact in the rows of a product, which are floats.
MOST_CHOICES = 2**24


class ProductHead(Head):
    """A head for each leaf of a Dict or Tuple, at any depth, in the order of the space."""

    def __init__(self, tree: Tree, heads: Sequence[Head]) -> None:
        super().__init__()
        self.tree = tree
        self.heads: Any = nn.ModuleList(heads)
        self.columns: list[ProductColumns] = []
        self.inputs = self.choices = self.noise_size = width = 0
        for head in heads:
            size = math.prod(head.layout.shape)
            self.columns.append(
                ProductColumns(
                    action=slice(width, width + size),
                    noise=slice(self.noise_size, self.noise_size + head.noise_size),
                    shape=head.layout.shape,
                    dtype=torch_dtype(head.layout.dtype),
                )
            )
            width += size
            self.means = [*self.means, *(self.inputs + mean for mean in head.means)]
            self.inputs += head.inputs
            self.choices += head.choices
            self.noise_size += head.noise_size
        self.layout = ActionLayout((width,), np.float32)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Product:
        parts = torch.split(inputs, [head.inputs for head in self.heads], -1)
        masks = [None] * len(parts) if mask is None else torch.split(mask, [head.choices for head in self.heads], -1)
        return Product([head(part, allowed) for head, part, allowed in zip(self.heads, parts, masks, strict=True)], self.columns)

    def noise(self, rng: np.random.Generator, steps: int) -> NDArray[np.float32]:
        return np.concatenate([head.noise(rng, steps) for head in self.heads], axis=1)

    def to_env(self, action: Array, precision: torch.dtype = torch.float64) -> Tree:
        pairs = zip(self.heads, self.columns, strict=True)
        parts = iter([head.to_env(columns.read(action), precision) for head, columns in pairs])
        return tree_map(lambda _: next(parts), self.tree)

    def from_env(self, action: Any) -> Tensor:
        parts = [head.from_env(part).float() for head, part in zip(self.heads, tree_leaves(action), strict=True)]
        return torch.cat([part.reshape(len(part), -1) for part in parts], -1)


def make_head(space: gymnasium.Space, config: Config) -> Head:
    """Return the head of an action space; raise an error for spaces that have none."""
    tree = space_tree(space)
    leaves = list(tree_leaves(tree))
    if sum(int(np.prod(leaf.shape)) for leaf in leaves) == 0:
        raise ProxRLError("the action space holds nothing to choose; wrap the environment so that it takes at least one action")
    heads = [_leaf_head(leaf, config) for leaf in leaves]
    if tree is space:
        return heads[0]
    if any(isinstance(leaf, spaces.Discrete) and leaf.n > MOST_CHOICES for leaf in leaves):
        raise ProxRLError(f"a Discrete with more than {MOST_CHOICES:,} choices can't be part of a Dict or Tuple of actions")
    return ProductHead(tree, heads)


def unused_settings(space: gymnasium.Space, config: Config) -> list[str]:
    """Return a line for each setting that was changed although it has no effect: of continuous actions if the action space has
    none, and of parts that the run does not have.
    """
    reasons = reasons_for_no_effect(config)
    if not any(isinstance(leaf, spaces.Box) for leaf in tree_leaves(space_tree(space))):
        reason = f"because the actions of {config.env} are not continuous: {space}"
        reasons |= {spec.name: reason for spec in dataclasses.fields(Config) if spec.metadata["group"] == ACTION}
    words = changed_settings(config)
    return [f"warning: {words[name]} has no effect {reasons[name]}" for name in words if name in reasons]


def _leaf_head(space: gymnasium.Space, config: Config) -> Head:
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space)
    assert isinstance(space, spaces.Box)
    if not np.issubdtype(space.dtype, np.floating):
        raise ProxRLError(
            f"the action space {space} takes whole numbers; wrap the environment so that they are a MultiDiscrete,"
            " or floats that it rounds"
        )
    if config.action_distribution == "beta":
        return BetaHead(space)
    if config.action_distribution == "tanh":
        return TanhHead(space, config.log_std_init, config.std)
    return GaussianHead(space, config.log_std_init, config.std)
