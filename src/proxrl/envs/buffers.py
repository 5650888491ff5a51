"""How pools store observations: their dtypes, and the arrays they are written to."""

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

# Observations keep these dtypes; others (float64, unsigned integers larger than bytes) become float32.
STORED_DTYPES = frozenset({"float32", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"})


def stored_space(space: gymnasium.Space) -> gymnasium.Space:
    """Return the space of observations as pools return them, with dtypes of `STORED_DTYPES`."""
    if isinstance(space, Masked):
        return Masked(stored_space(space["observation"]), space.choices)
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, stored_space(value)) for key, value in space.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stored_space(value) for value in space])
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).name not in STORED_DTYPES:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the lower precision, which is intended
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    if isinstance(space, LEAVES):
        return space
    raise refuse(space)


def stored_dtype(leaf: gymnasium.Space) -> Any:
    return np.int64 if isinstance(leaf, spaces.Discrete) else leaf.dtype


def cast_obs(obs: Tree, space: gymnasium.Space) -> Tree:
    """Convert the observations of a vectorized class to the dtypes of `stored_space`, without a copy if possible."""
    return tree_map(lambda leaf, value: np.asarray(value, stored_dtype(leaf)), space_tree(space), obs)


def allocate(space: gymnasium.Space, num_envs: int, empty: Callable[[tuple[int, ...], Any], Any] = np.zeros) -> Tree:
    """Return arrays [N, ...] for elements of a space, each made by `empty(shape, dtype)`."""
    return tree_map(lambda leaf: empty((num_envs, *leaf.shape), stored_dtype(leaf)), space_tree(space))


def write_row(buffer: Tree, row: int, obs: Tree) -> None:
    """Store one observation in row `row` of a tree of arrays."""
    tree_map(lambda array, value: array.__setitem__(row, value), buffer, obs)


@dataclass
class Buffers:
    """The arrays for the results of N environments; those of worker processes are in shared memory."""

    obs: Tree  # [N, ...]
    final_obs: Tree  # [N, ...] last observations, in the rows of environments whose episode has ended
    reward: NDArray[np.float32]  # [N]
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]

    @classmethod
    def make(cls, space: gymnasium.Space, num_envs: int, empty: Callable[[tuple[int, ...], Any], Any] = np.zeros) -> "Buffers":
        obs, final_obs = (allocate(space, num_envs, empty) for _ in range(2))
        terminated, truncated = (empty((num_envs,), np.bool_) for _ in range(2))
        return cls(obs, final_obs, empty((num_envs,), np.float32), terminated, truncated)

    def rows(self, part: slice) -> "Buffers":
        """Return views of the rows of some environments."""
        obs, final_obs = (tree_map(lambda array: array[part], tree) for tree in (self.obs, self.final_obs))
        return Buffers(obs, final_obs, self.reward[part], self.terminated[part], self.truncated[part])


class SharedArrays:
    """Arrays in memory shared by a pool and its worker processes. A worker opens them by `name`."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space, num_envs: int, name: str = "") -> None:
        def lay_out(memory: Any) -> tuple[Buffers, Tree, int]:
            used = 0

            def empty(shape: tuple[int, ...], dtype: Any) -> Any:
                nonlocal used
                begin, size = used, int(np.prod(shape)) * np.dtype(dtype).itemsize
                used += -(-size // 64) * 64  # whole cache lines, so that writing one array does not slow down access to the next
                return None if memory is None else np.ndarray(shape, dtype, memory, begin)

            buffers = Buffers.make(observation_space, num_envs, empty)
            # With the dtypes of the space, since an environment may check that the space contains its action.
            actions = tree_map(lambda leaf: empty((num_envs, *leaf.shape), leaf.dtype), space_tree(action_space))
            return buffers, actions, used

        _, _, size = lay_out(None)
        self._memory = _Memory(name=name or None, create=not name, size=size)
        self._named = not name
        self.name = self._memory.name
        memory: Any = self._memory.buf
        # `frombuffer` keeps the memory mapped as long as an array uses it; creating arrays on the buffer itself would not.
        self.buffers, self.actions, _ = lay_out(np.frombuffer(memory, np.uint8))

    def unlink(self) -> None:
        """Remove the name; the memory is released when the last process has closed it."""
        if self._named:
            self._named = False
            self._memory.unlink()

    def close(self) -> None:
        self.unlink()
        del self.buffers, self.actions
        self._memory.close()


class _Memory(SharedMemory):
    def close(self) -> None:
        with contextlib.suppress(BufferError):  # a caller still has an array: the memory is unmapped together with it
            super().close()
