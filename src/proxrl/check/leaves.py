"""The leaves of nested spaces and values, by the names that messages use: ['arm'][0] for the first part of a Tuple in a Dict."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def named_leaves(space: gymnasium.Space, path: str = "") -> Iterator[tuple[str, gymnasium.Space]]:
    """Where each leaf is, and its space, of whatever kind; in the order of `space_tree`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from named_leaves(part, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space):
            yield from named_leaves(part, f"{path}[{index}]")
    else:
        yield path, space


def leaves_of(space: gymnasium.Space, value: Any, path: str = "") -> Iterator[tuple[str, gymnasium.Space, Any]]:
    """Where each leaf is, its space and its value; a TypeError says where they do not fit together."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.keys():
            raise TypeError(f"part{path or ' at the top'} is {describe_form(value)}, not a dict with the keys {list(space)}")
        for key, part in space.items():
            yield from leaves_of(part, value[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        # Gymnasium and training take a list or an array for a tuple too.
        several = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
        if not several or len(value) != len(space):
            raise TypeError(f"part{path or ' at the top'} is {describe_form(value)}, not a tuple of {len(space)}")
        for index, part in enumerate(space):
            yield from leaves_of(part, value[index], f"{path}[{index}]")
    else:
        yield path, space, value


def entry(shape: tuple[int, ...], index: int) -> str:
    """One number of a leaf, by its place among all of them; nothing where there is only one."""
    return f"[{', '.join(map(str, np.unravel_index(index, shape)))}]" if shape else ""


def describe(value: Any) -> str:
    """A value that is not what it should be, in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{value!r:.40} of type {type(value).__name__}"


def describe_form(value: Any) -> str:
    """Of a dict or tuple what it holds, of anything else what it is."""
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    return f"({', '.join(type(part).__name__ for part in value)})" if isinstance(value, tuple) else describe(value)
