"""The leaves of nested spaces and values, and their names in messages: ['arm'][0] is the first part of a Tuple in a Dict."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def named_leaves(space: gymnasium.Space, path: str = "") -> Iterator[tuple[str, gymnasium.Space]]:
    """Yield the path and the space of each leaf, whether supported or not, in the order of `space_tree`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from named_leaves(part, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space):
            yield from named_leaves(part, f"{path}[{index}]")
    else:
        yield path, space


def leaves_of(space: gymnasium.Space, value: Any, path: str = "") -> Iterator[tuple[str, gymnasium.Space, Any]]:
    """Yield the path, space and value of each leaf. Raises a TypeError, which begins with a path, if the structures differ."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or not value.keys() >= space.keys():  # training ignores other keys
            raise TypeError(f"{path} is {describe_structure(value)}, not a dict with the keys {list(space)}")
        for key, part in space.items():
            yield from leaves_of(part, value[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        # Gymnasium and training also take a list or an array as a tuple.
        is_sequence = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
        if not is_sequence or len(value) != len(space):
            raise TypeError(f"{path} is {describe_structure(value)}, not a tuple of {len(space)}")
        for index, part in enumerate(space):
            yield from leaves_of(part, value[index], f"{path}[{index}]")
    else:
        yield path, space, value


def index_text(shape: tuple[int, ...], index: int) -> str:
    """Return the subscript of the number at a flat index, such as "[0, 1]"; empty for a scalar."""
    return f"[{', '.join(map(str, np.unravel_index(index, shape)))}]" if shape else ""


def describe_value(value: Any) -> str:
    """Describe a wrong value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{value!r:.40} of type {type(value).__name__}"


def describe_structure(value: Any) -> str:
    """Describe a dict or tuple by what it contains, and anything else by its value."""
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    return f"({', '.join(type(part).__name__ for part in value)})" if isinstance(value, tuple) else describe_value(value)
