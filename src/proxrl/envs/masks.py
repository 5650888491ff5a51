"""Action masks: which choices of the discrete parts of an action an environment allows now.

Inside ProxRL a mask is one row of bits, leaf after leaf of the action space: n for a Discrete, each entry's n for a
MultiDiscrete, (no, yes) for each bit of a MultiBinary. Environments give it so, or in the form that
`action_space.sample(mask)` takes.
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
    return sum(choices(leaf) for leaf in tree_leaves(space_tree(action_space)))


def flatten_mask(space: gymnasium.Space, mask: Any) -> Bits:
    """A mask in either form as one row of bits; a ValueError says what does not fit."""
    size = total_choices(space)
    if not isinstance(mask, dict | tuple | list) and np.shape(mask) == (size,) and not isinstance(space, spaces.MultiBinary):
        return _bits(mask, size)
    return np.concatenate([np.zeros(0, np.int8), *_leaf_bits(space, mask)])


def _leaf_bits(space: gymnasium.Space, mask: Any) -> Iterator[Bits]:
    if isinstance(space, spaces.Dict):
        if mask is not None and (not isinstance(mask, dict) or mask.keys() != space.keys()):
            raise ValueError(f"the action mask must be a dict of the keys {', '.join(space)}, {_or_a_row(space)}")
        for key, part in space.items():
            yield from _leaf_bits(part, None if mask is None else mask[key])
    elif isinstance(space, spaces.Tuple):
        if mask is not None and (not isinstance(mask, tuple | list) or len(mask) != len(space)):
            raise ValueError(f"the action mask must be a tuple of {len(space)} parts, {_or_a_row(space)}")
        for index, part in enumerate(space):
            yield from _leaf_bits(part, None if mask is None else mask[index])
    elif mask is None:  # everything, as Gymnasium has it
        yield np.ones(choices(space), np.int8)
    elif isinstance(space, spaces.MultiBinary):
        yield _binary_bits(mask, space)
    elif isinstance(space, spaces.MultiDiscrete) and isinstance(mask, tuple | list) and any(map(_nested, mask)):
        parts, sizes = list(_deep(mask)), group_sizes(space)
        if len(parts) != len(sizes):
            raise ValueError(f"the action mask has {len(parts)} parts, but the MultiDiscrete has {len(sizes)} entries")
        yield from map(_bits, parts, sizes)
    elif isinstance(space, spaces.Box):
        raise ValueError(f"there is a mask for a Box of shape {space.shape}, which has no choices; it must be None")
    else:
        yield _bits(mask, choices(space))


def _binary_bits(mask: Any, space: spaces.MultiBinary) -> Bits:
    """Gymnasium's form: 0 where the bit must be 0, 1 where it must be 1, 2 where it is free; or (no, yes) for every bit."""
    values = np.asarray(mask)
    if values.size == choices(space):
        return _bits(values.ravel(), choices(space))
    if values.shape != space.shape or values.dtype == np.bool_ or not np.isin(values, (0, 1, 2)).all():
        raise ValueError(f"the mask of {space} must hold 0 (must be 0), 1 (must be 1) or 2 (free) for every bit")
    return np.stack([values != 1, values != 0], axis=-1).ravel().astype(np.int8)


def _or_a_row(space: gymnasium.Space) -> str:
    return f"as the action space is, or one row of {total_choices(space)} bits"


def _deep(mask: Any) -> Iterator[Any]:
    for part in mask:
        if _nested(part) and len(part) and _nested(part[0]):
            yield from _deep(part)
        else:
            yield part


def _nested(part: Any) -> bool:
    """Not by `np.ndim` alone, which refuses lists of arrays of different sizes."""
    return isinstance(part, tuple | list) or np.ndim(part) > 0


def _bits(mask: Any, size: int) -> Bits:
    values = np.asarray(mask)
    if values.shape != (size,):
        raise ValueError(f"the action mask has shape {values.shape}, but must hold {size} bits, 1 for allowed and 0 for not")
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"the action mask is {values.tolist()!s:.60}, but must hold {size} bits, 1 for allowed and 0 for not")
    return values.astype(np.int8)


class Guard:
    """Refuses to act where nothing is allowed."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.masked = isinstance(observation_space, Masked)
        sizes = [size for leaf in tree_leaves(space_tree(action_space)) for size in group_sizes(leaf)]
        self.begins = np.cumsum([0, *sizes[:-1]])
        total = total_choices(action_space)
        if isinstance(observation_space, Masked) and observation_space.choices != total:
            raise ProxRLError(f"masks have {observation_space.choices} bits, but {action_space} has {total} choices")

    def check(self, obs: Tree) -> None:
        """Observations [N, ...] that are about to be acted on."""
        if not self.masked:
            return
        possible = np.logical_or.reduceat(obs[MASK], self.begins, axis=1)
        if not possible.all():
            row = int(np.argwhere(~possible)[0][0])
            raise ProxRLError(
                f"the action mask of environment {row} allows nothing; allow an action, or end the episode before that"
            )


def group_sizes(space: gymnasium.Space) -> list[int]:
    """The choices of which one each must be allowed."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(size) for size in space.nvec.ravel()]
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []
