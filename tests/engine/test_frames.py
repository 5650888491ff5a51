"""Stacked frames that are stored once: every stack is restored bit for bit, in a fraction of the memory."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from proxrl.engine.frames import FrameBuffer, FrameRows

SIZE = 6


def play(steps: int, num_envs: int, stack: int, channels: int, ends: float, seed: int = 0) -> NDArray[np.uint8]:
    """Return stacks [steps, N, stack * channels, SIZE, SIZE] of games that end at random. A new game shares no frame."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 255, (steps, num_envs, channels, SIZE, SIZE), dtype=np.uint8)
    stacks = np.zeros((steps, num_envs, stack, channels, SIZE, SIZE), np.uint8)
    for t in range(steps):
        for n in range(num_envs):
            if t == 0 or rng.random() < ends:
                stacks[t, n] = rng.integers(0, 255, stacks[t, n].shape) if rng.random() < 0.5 else 0
            else:
                stacks[t, n, :-1] = stacks[t - 1, n, 1:]
            stacks[t, n, -1] = frames[t, n]
    return stacks.reshape(steps, num_envs, stack * channels, SIZE, SIZE)


def fill(buffer: FrameBuffer, stacks: NDArray[np.uint8]) -> None:
    for t, row in enumerate(stacks):
        buffer.store(t, row)


@pytest.mark.parametrize(("stack", "channels", "ends"), [(4, 1, 0.1), (4, 3, 0.1), (2, 1, 0.5), (4, 1, 1.0), (3, 1, 0.0)])
def test_every_stack_is_restored(stack: int, channels: int, ends: float) -> None:
    stacks = play(40, 5, stack, channels, ends)
    buffer = FrameBuffer(40, 5, stacks.shape[2:], np.uint8, stack)
    for rollout in range(2):  # the second one overwrites the first
        expected = stacks if rollout == 0 else play(40, 5, stack, channels, ends, seed=9)
        fill(buffer, expected)
        assert all(np.array_equal(buffer[t], expected[t]) for t in range(40))
        assert np.array_equal(buffer[-1], expected[-1])
        rows = buffer.rows(torch.device("cpu"))
        flat = torch.from_numpy(expected.reshape(-1, *expected.shape[2:]))
        assert torch.equal(rows.dense(), flat)
        chosen = torch.tensor([7, 199, 0, 7, 120])
        assert torch.equal(rows[chosen], flat[chosen])
        part = rows[:-5]
        assert isinstance(part, FrameRows)
        assert len(part) == 195
        assert torch.equal(part[torch.tensor([194])], flat[194:195])


def test_stacks_in_which_frames_repeat_are_not_confused() -> None:
    """All frames are equal, so any stack continues any other; zeros are frames like any other."""
    stacks = np.zeros((10, 2, 4, SIZE, SIZE), np.uint8)
    stacks[5:, 1] = 7
    buffer = FrameBuffer(10, 2, stacks.shape[2:], np.uint8, 4)
    fill(buffer, stacks)
    assert all(np.array_equal(buffer[t], stacks[t]) for t in range(10))


def test_each_frame_is_stored_once() -> None:
    steps, num_envs = 129, 8
    stacks = play(steps, num_envs, 4, 1, ends=0.005)
    buffer = FrameBuffer(steps, num_envs, stacks.shape[2:], np.uint8, 4)
    fill(buffer, stacks)
    distinct = len(np.unique(stacks.reshape(-1, SIZE * SIZE), axis=0))
    assert buffer.used <= 1.05 * distinct
    assert buffer.frames.nbytes <= 1.3 * distinct * SIZE * SIZE
    assert stacks.nbytes > 3.5 * buffer.frames.nbytes


def test_a_rollout_begins_where_the_previous_one_ended() -> None:
    stacks = play(20, 3, 4, 1, 0.1)
    buffer = FrameBuffer(10, 3, stacks.shape[2:], np.uint8, 4)
    fill(buffer, stacks[:10])
    last: Any = buffer[-1]
    buffer.store(0, last)
    for t in range(1, 10):
        buffer.store(t, stacks[9 + t])
    assert np.array_equal(buffer[0], stacks[9])
    assert all(np.array_equal(buffer[t], stacks[9 + t]) for t in range(10))


def test_a_buffer_reads_like_the_array_that_it_represents() -> None:
    """Callbacks receive it as `rollout.obs` in Atari runs."""
    stacks = play(12, 3, 4, 1, 0.2)
    buffer = FrameBuffer(12, 3, stacks.shape[2:], np.uint8, 4)
    fill(buffer, stacks)
    assert (buffer.shape, buffer.ndim, buffer.dtype, len(buffer)) == (stacks.shape, 5, np.uint8, 12)
    assert np.array_equal(np.asarray(buffer), stacks)
    assert np.asarray(buffer, np.float32).dtype == np.float32
    first_two = [3, -1, slice(2, 9, 3), (4, 1), (slice(None), 2), np.array([5, 0]), (np.array([1, 7]), np.array([0, 2]))]
    every_axis = [(4, 1, 2), (slice(None), 0, -1, 3), (..., 5), np.asarray(stacks) > 100, np.arange(36).reshape(12, 3) % 2 == 0]
    for index in (*first_two, *every_axis):
        assert np.array_equal(buffer[index], stacks[index]), index
    assert np.array_equal(buffer[1:, ...], stacks[1:])
    assert np.array_equal(buffer / 255, stacks / 255)
    assert np.mean(buffer) == stacks.mean()
    with pytest.raises(TypeError, match="item assignment"):
        buffer[0] = stacks[0]  # type: ignore[index]  # frames are shared between stacks


def test_the_first_steps_of_a_buffer() -> None:
    stacks = play(12, 3, 4, 1, 0.2)
    buffer = FrameBuffer(12, 3, stacks.shape[2:], np.uint8, 4)
    fill(buffer, stacks)
    part = buffer.first(5)
    assert np.array_equal(np.asarray(part), stacks[:5])
    assert torch.equal(part.rows(torch.device("cpu")).dense(), torch.from_numpy(stacks[:5]).flatten(0, 1))
