"""Nested dicts and tuples of arrays, so that plain and nested observations share their code."""

from collections.abc import Callable, Iterator
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to the leaves of trees of equal structure; anything but a dict or a tuple is a leaf."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *values) for values in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def tree_leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves in the order of `tree_map`."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tree_leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from tree_leaves(value)
    else:
        yield tree
