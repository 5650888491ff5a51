"""Actions as numbers, for models that predict what an action does or which action was taken."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from proxrl.common.tree import tree_leaves
from proxrl.envs.masks import group_sizes
from proxrl.envs.spaces import space_tree
from proxrl.policy.preprocess import make_preprocess

WIDEST = 1e6  # bounds from here on count as none


class LeafCode(nn.Module):
    """The code of one leaf of an action space: one-hot vectors for choices, bits as they are, and the numbers of a Box scaled to
    [-1, 1] where they have bounds.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.encode = make_preprocess(space, normalize=False, clip=None)
        self.size = spaces.flatdim(space)
        self.kind = type(space)
        self.groups = [] if isinstance(space, spaces.MultiBinary) else group_sizes(space)  # sizes of the one-hot vectors
        center, scale = np.zeros(self.size), np.ones(self.size)
        if isinstance(space, spaces.Box):
            lowest, highest = space.low.astype(np.float64), space.high.astype(np.float64)
            # Divided by very wide bounds, all actions would look alike.
            bounded = (lowest > -WIDEST) & (highest < WIDEST) & (lowest < highest)
            low, high = (np.where(bounded, bound, limit).ravel() for bound, limit in ((lowest, -1.0), (highest, 1.0)))
            center, scale = (low + high) / 2, (high - low) / 2
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        code: Tensor = self.encode(action)
        return (code.reshape(code.shape[0], self.size) - self.center) / self.scale

    def errors(self, output: Tensor, code: Tensor) -> Tensor:
        """Return the error [B, entries] of predictions: the cross-entropy of choices and bits, half the square of numbers."""
        if self.kind is spaces.MultiBinary:
            return binary_cross_entropy_with_logits(output, code, reduction="none")
        if not self.groups:
            return 0.5 * (output - code) ** 2
        pairs = zip(*(torch.split(columns, self.groups, 1) for columns in (output, code)), strict=True)
        return torch.stack([cross_entropy(logits, one_hot, reduction="none") for logits, one_hot in pairs], 1)


class ActionCode(nn.Module):
    """The code [B, size] of actions of any supported space: those of its leaves, one after another."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.leaves = nn.ModuleList(LeafCode(leaf) for leaf in tree_leaves(space_tree(space)))
        self.sizes = [leaf.size for leaf in self._codes()]
        self.size = sum(self.sizes)

    def forward(self, action: object) -> Tensor:
        """Encode actions as the environment receives them: trees of tensors [B, ...]."""
        return torch.cat([code(leaf) for code, leaf in zip(self._codes(), tree_leaves(action), strict=True)], 1)

    def error(self, output: Tensor, code: Tensor) -> Tensor:
        """Return the mean error [B] of predicted codes over the entries of an action, so that it does not grow with their number:
        a Discrete is one entry, a MultiBinary has one for each bit.
        """
        parts = zip(self._codes(), *(torch.split(columns, self.sizes, 1) for columns in (output, code)), strict=True)
        return torch.cat([leaf.errors(*pair) for leaf, *pair in parts], 1).mean(1)

    def _codes(self) -> Iterator[LeafCode]:
        for leaf in self.leaves:
            assert isinstance(leaf, LeafCode)
            yield leaf
