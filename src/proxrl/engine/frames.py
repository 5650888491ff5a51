"""Stacked frames, each stored once.

A stack of k frames shares k - 1 of them with the stack before it, so a rollout of stacks would hold every frame k times. A
`FrameBuffer` stores the frames and, for every stack, where its frames are. Nothing is lost: a stack that does not continue the
one before it, as at the start of an episode, is stored whole.
"""

from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray
from torch import Tensor


class FrameBuffer(NDArrayOperatorsMixin):
    """Stacks [steps, N, k * channels, height, width]. `store` writes them step by step; otherwise it is a read-only array: it can
    be indexed, used in arithmetic, and converted by np.asarray().
    """

    def __init__(self, steps: int, num_envs: int, shape: tuple[int, ...], dtype: Any, stack: int) -> None:
        self.shape, self.dtype, self.stack = (steps, num_envs, *shape), np.dtype(dtype), stack
        frame = (shape[0] // stack, *shape[1:])
        # Room for one new frame per step and the frames of the first stacks; `_append` makes more when episodes begin.
        self.frames = np.empty((num_envs * (steps + stack - 1), *frame), dtype)
        self.positions = np.zeros((steps, num_envs, stack), np.int64)  # of each stack's frames, in `frames`
        self.used = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        axes = index if isinstance(index, tuple) else (index,)
        if len(axes) > 2 or any(axis is None or axis is Ellipsis or np.ndim(axis) > 1 for axis in axes):
            dense: NDArray[Any] = np.asarray(self)[index]
            return dense
        positions = self.positions[index]  # the first two axes alone: gather only the stacks that were asked for
        stacks: NDArray[Any] = self.frames[positions].reshape(*positions.shape[:-1], *self.shape[2:])
        return stacks

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a FrameBuffer stores each frame once, so an array of it is always a copy")
        return self[:].astype(dtype or self.dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [np.asarray(item) if isinstance(item, FrameBuffer) else item for item in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def first(self, steps: int) -> "FrameBuffer":
        """Return the first steps, sharing the frames of this buffer."""
        part = FrameBuffer.__new__(FrameBuffer)
        part.shape, part.dtype, part.stack = (steps, *self.shape[1:]), self.dtype, self.stack
        part.frames, part.positions, part.used = self.frames, self.positions[:steps], self.used
        return part

    def store(self, step: int, stacks: NDArray[Any]) -> None:
        """Write the stacks [N, ...] of one step. Steps are written in order; step 0 discards what was stored before."""
        frames = stacks.reshape(len(stacks), self.stack, *self.frames.shape[1:])
        if step == 0:
            self.used = 0
            self._store_whole(step, np.arange(len(frames)), frames)
            return
        before, here = self.positions[step - 1], self.positions[step]
        # Apart from its newest frame, a stack that continues is the one before it without its oldest frame.
        continues = (frames[:, :-1] == self.frames[before[:, 1:]]).all(axis=tuple(range(1, frames.ndim)))
        continuing, begun = np.flatnonzero(continues), np.flatnonzero(~continues)
        here[continuing, :-1] = before[continuing, 1:]
        here[continuing, -1] = self._append(frames[continuing, -1])
        self._store_whole(step, begun, frames[begun])

    def _store_whole(self, step: int, envs: NDArray[np.int64], stacks: NDArray[Any]) -> None:
        for position in range(self.stack):
            self.positions[step, envs, position] = self._append(stacks[:, position])

    def _append(self, frames: NDArray[Any]) -> NDArray[np.int64]:
        end = self.used + len(frames)
        if end > len(self.frames):
            # Grow by 1/16; episode starts are rare, so this is seldom needed.
            more = max(len(self.frames) // 16, len(frames))
            self.frames = np.concatenate([self.frames, np.empty((more, *self.frames.shape[1:]), self.dtype)])
        self.frames[self.used : end] = frames
        positions = np.arange(self.used, end)
        self.used = end
        return positions

    def rows(self, device: torch.device) -> "FrameRows":
        """Return all stacks in order of time, then environment, on the device where the network runs."""
        frames = torch.from_numpy(self.frames[: self.used]).to(device)
        return FrameRows(frames, torch.from_numpy(self.positions.reshape(-1, self.stack)).to(device))


class FrameRows:
    """Stacks [rows, k * channels, height, width] that are put together when they are indexed."""

    def __init__(self, frames: Tensor, positions: Tensor) -> None:
        self.frames, self.positions = frames, positions
        self.row_size = positions.shape[1] * frames[0].numel()  # numbers in a row

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: Any) -> "Tensor | FrameRows":
        """Return some of the rows for a slice, or the stacks themselves for row numbers."""
        if isinstance(rows, slice):
            return FrameRows(self.frames, self.positions[rows])
        return self.gather(self.positions[rows])

    def gather(self, positions: Tensor) -> Tensor:
        """Return stacks with the channels last in memory, as convolutions want them: building them so costs nothing extra."""
        if self.frames.shape[1] > 1:
            return self.frames.index_select(0, positions.reshape(-1)).view(
                len(positions), positions.shape[1] * self.frames.shape[1], *self.frames.shape[2:]
            )
        layers = [self.frames[:, 0].index_select(0, position) for position in positions.unbind(1)]
        return torch.stack(layers, -1).permute(0, 3, 1, 2)

    def dense(self) -> Tensor:
        return self.gather(self.positions)
