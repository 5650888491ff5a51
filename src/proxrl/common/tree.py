"""Nested dicts and tuples of arrays, so that one observation or a dictionary of them takes the same path."""

from collections.abc import Callable, Iterator
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to the leaves of trees of equal shape; anything but a dict or a tuple is a leaf."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *values) for values in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def tree_leaves(tree: Any) -> Iterator[Any]:
    """The leaves in a fixed order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tree_leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from tree_leaves(value)
    else:
        yield tree
