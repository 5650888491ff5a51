"""How a pool stores observations: the types it promises, and the arrays it writes them into."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_map
from proxrl.envs.spaces import LEAVES, Masked, refuse, space_tree
from proxrl.types import Tree

# Numbers as they are stored; other kinds (double precision, unsigned beyond bytes) become float32.
KEPT = frozenset({"float32", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"})


def stored_space(space: gymnasium.Space) -> gymnasium.Space:
    """The space of observations as a pool hands them out: float64 becomes float32, the rest keeps its type."""
    if isinstance(space, Masked):
        return Masked(stored_space(space["observation"]), space.choices)
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, stored_space(value)) for key, value in space.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stored_space(value) for value in space])
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).name not in KEPT:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lower precision is the point
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    if isinstance(space, LEAVES):
        return space
    raise refuse(space)


def stored_dtype(leaf: gymnasium.Space) -> Any:
    return np.int64 if isinstance(leaf, spaces.Discrete) else leaf.dtype


def cast_obs(obs: Tree, space: gymnasium.Space) -> Tree:
    """Observations of a vectorised class in the types that `stored_space` promises; no copy where they already fit."""
    return tree_map(lambda leaf, value: np.asarray(value, stored_dtype(leaf)), space_tree(space), obs)


def allocate(space: gymnasium.Space, num_envs: int, empty: Callable[[tuple[int, ...], Any], Any] = np.zeros) -> Tree:
    """Arrays [N, ...] for elements of a space, each made by `empty(shape, dtype)`."""
    return tree_map(lambda leaf: empty((num_envs, *leaf.shape), stored_dtype(leaf)), space_tree(space))


def write_row(buffer: Tree, row: int, obs: Tree) -> None:
    """Store one observation in row `row` of a tree of arrays."""
    tree_map(lambda array, value: array.__setitem__(row, value), buffer, obs)


@dataclass
class Buffers:
    """Where N environments leave their results; worker processes put them in shared memory."""

    obs: Tree  # [N, ...]
    final_obs: Tree  # [N, ...] rows of ended environments hold their last observation
    reward: NDArray[np.float32]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]

    @classmethod
    def make(cls, space: gymnasium.Space, num_envs: int, empty: Callable[[tuple[int, ...], Any], Any] = np.zeros) -> "Buffers":
        obs, final_obs = (allocate(space, num_envs, empty) for _ in range(2))
        terminated, truncated = (empty((num_envs,), np.bool_) for _ in range(2))
        return cls(obs, final_obs, empty((num_envs,), np.float32), terminated, truncated)

    def rows(self, part: slice) -> "Buffers":
        """A view of some environments."""
        obs, final_obs = (tree_map(lambda array: array[part], tree) for tree in (self.obs, self.final_obs))
        return Buffers(obs, final_obs, self.reward[part], self.terminated[part], self.truncated[part])


class SharedArrays:
    """The arrays that a pool and its worker processes both see; a worker opens them by `name`."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space, num_envs: int, name: str = "") -> None:
        def lay_out(memory: Any) -> tuple[Buffers, Tree, int]:
            used = 0

            def empty(shape: tuple[int, ...], dtype: Any) -> Any:
                nonlocal used
                begin, size = used, int(np.prod(shape)) * np.dtype(dtype).itemsize
                used += -(-size // 64) * 64  # whole cache lines, so that no array slows its neighbour down
                return None if memory is None else np.ndarray(shape, dtype, memory, begin)

            buffers = Buffers.make(observation_space, num_envs, empty)
            # In the space's own types: an environment may check that its action is one of the space.
            actions = tree_map(lambda leaf: empty((num_envs, *leaf.shape), leaf.dtype), space_tree(action_space))
            return buffers, actions, used

        _, _, size = lay_out(None)
        self._memory = _Memory(name=name or None, create=not name, size=size)
        self._named = not name
        self.name = self._memory.name
        memory: Any = self._memory.buf
        # `frombuffer` keeps the memory mapped as long as any array on it lives; an array right on the memory would not.
        self.buffers, self.actions, _ = lay_out(np.frombuffer(memory, np.uint8))

    def unlink(self) -> None:
        """Take the name away; the memory goes with the last process that has it open."""
        if self._named:
            self._named = False
            self._memory.unlink()

    def close(self) -> None:
        self.unlink()
        del self.buffers, self.actions
        self._memory.close()


class _Memory(SharedMemory):
    def close(self) -> None:
        with contextlib.suppress(BufferError):  # a caller still holds an array: the mapping goes when that does
            super().close()
