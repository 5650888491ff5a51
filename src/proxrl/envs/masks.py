"""Action masks: which choices of the discrete parts of an action are currently allowed.

Inside ProxRL a mask is one row of bits, for the leaves of the action space in order: n bits for a Discrete, the n of each entry
for a MultiDiscrete, and two, for the values 0 and 1, for each bit of a MultiBinary. Environments give masks in this form or in
that of `action_space.sample(mask)`.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_leaves
from proxrl.envs.spaces import Masked, choices, space_tree
from proxrl.errors import ProxRLError
from proxrl.types import Tree

MASK = "action_mask"
Bits = NDArray[np.int8]


def total_choices(action_space: gymnasium.Space) -> int:
    """Return the number of bits in a mask for an action space."""
    return sum(choices(leaf) for leaf in tree_leaves(space_tree(action_space)))


def flatten_mask(space: gymnasium.Space, mask: Any) -> Bits:
    """Return a mask, given in either form, as one row of bits. Raises a `ValueError` if it does not fit the space."""
    size = total_choices(space)
    if not isinstance(mask, dict | tuple | list) and np.shape(mask) == (size,) and not isinstance(space, spaces.MultiBinary):
        return _bits(mask, size)
    return np.concatenate([np.zeros(0, np.int8), *_leaf_bits(space, mask)])


def _leaf_bits(space: gymnasium.Space, mask: Any) -> Iterator[Bits]:
    if isinstance(space, spaces.Dict):
        if mask is not None and (not isinstance(mask, dict) or mask.keys() != space.keys()):
            raise ValueError(f"the action mask must be a dict with the keys {', '.join(space)}, {_or_a_row(space)}")
        for key, part in space.items():
            yield from _leaf_bits(part, None if mask is None else mask[key])
    elif isinstance(space, spaces.Tuple):
        if mask is not None and (not isinstance(mask, tuple | list) or len(mask) != len(space)):
            raise ValueError(f"the action mask must be a tuple of {len(space)} parts, {_or_a_row(space)}")
        for index, part in enumerate(space):
            yield from _leaf_bits(part, None if mask is None else mask[index])
    elif mask is None:  # everything is allowed, as in Gymnasium
        yield np.ones(choices(space), np.int8)
    elif isinstance(space, spaces.MultiBinary):
        yield _binary_bits(mask, space)
    elif isinstance(space, spaces.MultiDiscrete) and isinstance(mask, tuple | list) and any(map(_has_entries, mask)):
        parts, sizes = list(_flat_parts(mask)), group_sizes(space)
        if len(parts) != len(sizes):
            raise ValueError(f"the action mask has {len(parts)} parts, but the MultiDiscrete has {len(sizes)} entries")
        yield from map(_bits, parts, sizes)
    elif isinstance(space, spaces.Box):
        raise ValueError(f"the mask for a Box of shape {space.shape} must be None, since it has no choices")
    else:
        yield _bits(mask, choices(space))


def _binary_bits(mask: Any, space: spaces.MultiBinary) -> Bits:
    """Convert Gymnasium's form, in which 0 and 1 fix a bit and 2 leaves it free, or two bits (0 allowed, 1 allowed) for each."""
    values = np.asarray(mask)
    if values.size == choices(space):
        return _bits(values.ravel(), choices(space))
    if values.shape != space.shape or values.dtype == np.bool_ or not np.isin(values, (0, 1, 2)).all():
        raise ValueError(f"the mask of {space} must hold 0 (must be 0), 1 (must be 1) or 2 (free) for every bit")
    return np.stack([values != 1, values != 0], axis=-1).ravel().astype(np.int8)


def _or_a_row(space: gymnasium.Space) -> str:
    return f"like the action space, or one row of {total_choices(space)} bits"


def _flat_parts(mask: Any) -> Iterator[Any]:
    """Yield the rows of bits in nested lists of them."""
    for part in mask:
        if _has_entries(part) and len(part) and _has_entries(part[0]):
            yield from _flat_parts(part)
        else:
            yield part


def _has_entries(part: Any) -> bool:
    """Return whether a part of a mask has entries. `np.ndim` alone fails for lists of arrays of different sizes."""
    return isinstance(part, tuple | list) or np.ndim(part) > 0


def _bits(mask: Any, size: int) -> Bits:
    values = np.asarray(mask)
    if values.shape != (size,):
        raise ValueError(f"the action mask has shape {values.shape}, but must hold {size} bits, 1 for allowed and 0 for not")
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"the action mask is {values.tolist()!s:.60}, but must hold {size} bits, 1 for allowed and 0 for not")
    return values.astype(np.int8)


class Guard:
    """Raises an error for masks that allow no action."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.masked = isinstance(observation_space, Masked)
        sizes = [size for leaf in tree_leaves(space_tree(action_space)) for size in group_sizes(leaf)]
        self.group_starts = np.cumsum([0, *sizes[:-1]])
        total = total_choices(action_space)
        if isinstance(observation_space, Masked) and observation_space.choices != total:
            raise ProxRLError(f"masks have {observation_space.choices} bits, but {action_space} has {total} choices")

    def check(self, obs: Tree, first_env: int = 0) -> None:
        """Check the masks of observations [N, ...] before acting on them. Errors number environments from `first_env`."""
        if not self.masked:
            return
        possible = np.logical_or.reduceat(obs[MASK], self.group_starts, axis=1)
        if not possible.all():
            env = first_env + int(np.argwhere(~possible)[0][0])
            raise ProxRLError(f"the action mask of environment {env} allows no action; allow one, or end the episode before that")


def group_sizes(space: gymnasium.Space) -> list[int]:
    """Return the sizes of the groups of choices of a leaf; each group needs at least one allowed choice."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(size) for size in space.nvec.ravel()]
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []
