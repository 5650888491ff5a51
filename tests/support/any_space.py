"""Random spaces of every supported kind, and simple functions that read their elements, for tests of spaces and masks."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from numpy.typing import NDArray

from proxrl.types import Tree

# With dots and spaces, which keys may have but names of torch modules may not.
NAMES = ("a", "b", "a.b", "b.a.c", "x y")
SEEDS = st.integers(0, 2**31 - 1)


@st.composite
def boxes(draw: Any, dtypes: tuple[type, ...] = (np.float32, np.float64), bounded: bool = True) -> spaces.Box:
    """Boxes with 0 to 3 dimensions and different bounds for every number, some of them infinite if not `bounded`."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(1, 3 if np.issubdtype(dtype, np.floating) else 2), max_size=3)))
    if dtype is np.uint8:
        return spaces.Box(0, 255, shape, dtype)
    rng = np.random.default_rng(draw(SEEDS))
    if np.issubdtype(dtype, np.integer):
        low = rng.integers(-50, 50, shape)
        return spaces.Box(np.asarray(low, dtype), np.asarray(low + rng.integers(1, 50, shape), dtype), shape, dtype)
    low = np.asarray(rng.uniform(-5, 5, shape), dtype)
    high = np.asarray(low + rng.uniform(0.5, 5, shape), dtype)
    if not bounded:
        low = np.where(rng.random(shape) < 0.3, -np.inf, low).astype(dtype)
        high = np.where(rng.random(shape) < 0.3, np.inf, high).astype(dtype)
    return spaces.Box(low, high, shape, dtype)


@st.composite
def discretes(draw: Any, most: int = 4) -> spaces.Discrete:
    dtype = draw(st.sampled_from((np.int64, np.int32)))
    return spaces.Discrete(draw(st.integers(1, most)), start=draw(st.integers(-3, 5)), dtype=dtype)


@st.composite
def multi_discretes(draw: Any, most: int = 3) -> spaces.MultiDiscrete:
    """MultiDiscretes with one or two dimensions."""
    shape = draw(st.sampled_from(((1,), (2,), (3,), (1, 1), (1, 2), (2, 2))))
    rng = np.random.default_rng(draw(SEEDS))
    dtype = draw(st.sampled_from((np.int64, np.int32)))
    return spaces.MultiDiscrete(rng.integers(1, most + 1, shape), dtype=dtype, start=rng.integers(-3, 4, shape))


def multi_binaries() -> st.SearchStrategy[spaces.MultiBinary]:
    return st.sampled_from((1, 2, 3, (2,), (2, 2), (1, 3))).map(spaces.MultiBinary)


def nested(leaf: st.SearchStrategy[Any], depth: int = 3) -> st.SearchStrategy[Any]:
    """Leaves, and Dicts and Tuples of them; the keys of a Dict are in any order."""
    if depth == 0:
        return leaf
    inner = nested(leaf, depth - 1)
    dicts = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    tuples = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(leaf, dicts.map(lambda parts: spaces.Dict(list(parts.items()))), tuples.map(spaces.Tuple))


def discrete_leaves() -> st.SearchStrategy[Any]:
    return st.one_of(discretes(), multi_discretes(), multi_binaries())


def action_spaces(bounded: bool = True, depth: int = 3) -> st.SearchStrategy[Any]:
    return nested(st.one_of(boxes(bounded=bounded), discrete_leaves()), depth)


def observation_spaces(depth: int = 3) -> st.SearchStrategy[Any]:
    numbers = boxes((np.float32, np.float64, np.uint8, np.int32, np.int64), bounded=False)
    return nested(st.one_of(numbers, discrete_leaves()), depth)


def leaves_of(space: gymnasium.Space, value: Any = None) -> Iterator[tuple[gymnasium.Space, Any]]:
    """Yield every leaf of a space in order, with its part of an element."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from leaves_of(part, None if value is None else value[key])
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space):
            yield from leaves_of(part, None if value is None else value[index])
    else:
        yield space, value


def group_sizes(space: gymnasium.Space) -> list[int]:
    """Return the number of choices for each discrete part of an action."""
    sizes: list[int] = []
    for leaf, _ in leaves_of(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += [int(size) for size in leaf.nvec.ravel()]
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * int(np.prod(leaf.shape))
    return sizes


def taken_bits(space: gymnasium.Space, action: Tree) -> list[int]:
    """Return the indices of the bits of a flat mask that allow an action, counted one by one."""
    taken: list[int] = []
    start = 0
    for leaf, value in leaves_of(space, action):
        if isinstance(leaf, spaces.Discrete):
            numbers, sizes = [int(value) - int(leaf.start)], [int(leaf.n)]
        elif isinstance(leaf, spaces.MultiDiscrete):
            numbers, sizes = (np.asarray(value) - leaf.start).ravel().tolist(), leaf.nvec.ravel().tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            numbers, sizes = np.asarray(value).ravel().tolist(), [2] * int(np.prod(leaf.shape))
        else:
            continue
        for number, size in zip(numbers, sizes, strict=True):
            assert 0 <= number < size
            taken.append(start + int(number))
            start += size
    return taken


def random_mask(space: gymnasium.Space, rng: np.random.Generator, rows: int, allowed: float = 0.5) -> NDArray[np.int8]:
    """Return masks [rows, choices] that allow at least one choice for every part of the action."""
    groups = []
    for size in group_sizes(space):
        bits = rng.random((rows, size)) < allowed
        bits[np.arange(rows), rng.integers(0, size, rows)] = True
        groups.append(bits)
    return np.concatenate([np.zeros((rows, 0), np.bool_), *groups], axis=1).astype(np.int8)


def is_element(space: gymnasium.Space, value: Any) -> bool:
    """Return whether a value is in a space, with exactly its structure and dtypes, which `space.contains` does not check."""
    if isinstance(space, spaces.Dict):
        same = type(value) is dict and list(value) == list(space)
        return same and all(is_element(part, value[key]) for key, part in space.items())
    if isinstance(space, spaces.Tuple):
        same = type(value) is tuple and len(value) == len(space)
        return same and all(is_element(part, value[index]) for index, part in enumerate(space))
    plain = isinstance(space, spaces.Discrete) and type(value) is int
    return bool(space.contains(value)) and (plain or value.dtype == space.dtype)
