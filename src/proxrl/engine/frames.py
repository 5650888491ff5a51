"""Stacked frames, each stored once.

A stack of k frames shares k - 1 of them with the stack before it, so a rollout of stacks would hold every frame k times. Here a
buffer of stacks is a store of frames and, for every stack, where its frames are in it. Nothing is lost: a stack that does not
continue the one before, as at the start of an episode, brings all its frames.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class FrameBuffer:
    """Takes stacks [N, k * channels, height, width] step by step and gives them back as an array would: `buffer[t]`."""

    def __init__(self, steps: int, num_envs: int, shape: tuple[int, ...], dtype: Any, stack: int) -> None:
        self.shape, self.dtype, self.stack = (steps, num_envs, *shape), np.dtype(dtype), stack
        frame = (shape[0] // stack, *shape[1:])
        # Room for one new frame per step and the frames of the first stacks; more is added when episodes begin.
        self.frames = np.empty((num_envs * (steps + stack - 1), *frame), dtype)
        self.place = np.zeros((steps, num_envs, stack), np.int64)
        self.used = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, step: int) -> NDArray[Any]:
        stacks: NDArray[Any] = self.frames[self.place[step]].reshape(self.shape[1:])
        return stacks

    def __setitem__(self, step: int, stacks: NDArray[Any]) -> None:
        """Step 0, or -1 before there is any, begins a rollout: what was stored before goes."""
        given = stacks.reshape(len(stacks), self.stack, *self.frames.shape[1:])
        if step in (0, -1):
            self.used = 0
            self._store(step % len(self), np.arange(len(given)), given)
            return
        before, here = self.place[step - 1], self.place[step]
        # The newest frame apart, a stack that goes on is the one before it without its oldest.
        goes_on = (given[:, :-1] == self.frames[before[:, 1:]]).all(axis=tuple(range(1, given.ndim)))
        going, begun = np.flatnonzero(goes_on), np.flatnonzero(~goes_on)
        here[going, :-1] = before[going, 1:]
        here[going, -1] = self._append(given[going, -1])
        self._store(step, begun, given[begun])

    def _store(self, step: int, envs: NDArray[np.int64], stacks: NDArray[Any]) -> None:
        for position in range(self.stack):
            self.place[step, envs, position] = self._append(stacks[:, position])

    def _append(self, frames: NDArray[Any]) -> NDArray[np.int64]:
        end = self.used + len(frames)
        if end > len(self.frames):
            # By a sixteenth: episodes are longer than a few frames, and a copy costs little beside playing them.
            more = max(len(self.frames) // 16, len(frames))
            self.frames = np.concatenate([self.frames, np.empty((more, *self.frames.shape[1:]), self.dtype)])
        self.frames[self.used : end] = frames
        places = np.arange(self.used, end)
        self.used = end
        return places

    def rows(self, device: torch.device) -> "FrameRows":
        """All stacks in the order of time, then environment, where the network computes."""
        frames = torch.from_numpy(self.frames[: self.used]).to(device)
        return FrameRows(frames, torch.from_numpy(self.place.reshape(-1, self.stack)).to(device))


class FrameRows:
    """Stacks [rows, k * channels, height, width] that are put together when they are asked for."""

    def __init__(self, frames: Tensor, place: Tensor) -> None:
        self.frames, self.place = frames, place
        self.row_numbers = place.shape[1] * frames[0].numel()

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, rows: Any) -> "Tensor | FrameRows":
        """A part of them for a slice; the stacks themselves for row numbers."""
        if isinstance(rows, slice):
            return FrameRows(self.frames, self.place[rows])
        return self.gather(self.place[rows])

    def gather(self, place: Tensor) -> Tensor:
        """With the channels last in memory, as convolutions want them: that way it costs nothing extra."""
        if self.frames.shape[1] > 1:
            return self.frames.index_select(0, place.reshape(-1)).view(
                len(place), place.shape[1] * self.frames.shape[1], *self.frames.shape[2:]
            )
        layers = [self.frames[:, 0].index_select(0, position) for position in place.unbind(1)]
        return torch.stack(layers, -1).permute(0, 3, 1, 2)

    def dense(self) -> Tensor:
        return self.gather(self.place)
