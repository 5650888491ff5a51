"""`--frame-stack`: a pool whose observations are the last observations of each environment, around any other pool.

Every Box of the observation is stacked, the oldest first: images along their channels, which come first afterwards, everything
else as one vector. At the start of an episode, the stack is filled with its first observation. Other leaves, such as Discrete
entries and action masks, are not stacked.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.envs.api import Autoreset, Environments
from proxrl.envs.atari import looks_like_atari
from proxrl.envs.buffers import stored_dtype
from proxrl.envs.spaces import SMALLEST_IMAGE, Masked, channels_last, is_image, space_tree
from proxrl.errors import ProxRLError
from proxrl.types import Step, Tree


class FrameForm:
    """How one observation of a Box becomes a frame: what is stacked along the first axis."""

    def __init__(self, space: spaces.Box, image_channels: str) -> None:
        shape = space.shape
        self.moves_channels = is_image(space) and channels_last(shape, image_channels)
        if self.moves_channels:
            self.shape: tuple[int, ...] = (shape[2], shape[0], shape[1])
        elif is_image(space):
            self.shape = shape
        else:
            gray = space.dtype == np.uint8 and len(shape) == 2 and min(shape) >= SMALLEST_IMAGE
            self.shape = (1, *shape) if gray else (int(np.prod(shape)),)

    def frames(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return observations [N, ...] as frames [N, *shape]."""
        return np.moveaxis(rows, -1, 1) if self.moves_channels else rows.reshape(len(rows), *self.shape)

    def stacked_space(self, space: spaces.Box, stack: int) -> spaces.Box:
        low, high = (np.concatenate([self.frames(bound[None])[0]] * stack) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)


def stacked_space(space: gymnasium.Space, stack: int, image_channels: str = "auto") -> gymnasium.Space:
    """Return the space of stacks of `stack` observations."""
    if isinstance(space, Masked):
        return Masked(stacked_space(space["observation"], stack, image_channels), space.choices)
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, stacked_space(part, stack, image_channels)) for key, part in space.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, stack, image_channels) for part in space])
    return FrameForm(space, image_channels).stacked_space(space, stack) if isinstance(space, spaces.Box) else space


class Newest:
    """A leaf that is not stacked."""

    def push(self, rows: NDArray[Any], begun: NDArray[np.int64]) -> NDArray[Any]:
        return rows

    def last(self, rows: NDArray[Any], ended: NDArray[np.int64]) -> NDArray[Any]:
        return rows


class LeafStack:
    """The stacks of one Box of N environments."""

    def __init__(self, space: spaces.Box, num_envs: int, stack: int, image_channels: str) -> None:
        self.form = FrameForm(space, image_channels)
        self.frames = np.zeros((num_envs, stack, *self.form.shape), stored_dtype(space))
        self.stacks = self._stacks(self.frames)  # the same memory

    def _stacks(self, frames: NDArray[Any]) -> NDArray[Any]:
        return frames.reshape(len(frames), -1, *self.form.shape[1:])

    def push(self, rows: NDArray[Any], begun: NDArray[np.int64]) -> NDArray[Any]:
        """Append observations [N, ...] and return the stacks; environments in `begun` begin an episode with theirs."""
        newest = self.form.frames(rows)
        self.frames[:, :-1] = self.frames[:, 1:]
        self.frames[:, -1] = newest
        if len(begun):
            self.frames[begun] = newest[begun][:, None]
        return self.stacks

    def last(self, rows: NDArray[Any], ended: NDArray[np.int64]) -> NDArray[Any]:
        """Return the stacks [K, ...] that end with these last observations, before the next episode is pushed."""
        newest = self.form.frames(rows)[:, None]
        return self._stacks(np.concatenate([self.frames[ended, 1:], newest], axis=1))


class StackedEnvs:
    """Another pool with stacked observations, for either style of autoreset."""

    def __init__(self, pool: Environments, stack: int, image_channels: str = "auto") -> None:
        leaves = list(tree_leaves(space_tree(pool.observation_space)))
        if not any(isinstance(leaf, spaces.Box) for leaf in leaves):
            raise ProxRLError(
                f"--frame-stack {stack} stacks Box observations, but the observation space is {pool.observation_space};"
                " leave it out"
            )
        self.pool, self.frame_stack = pool, stack
        self.num_envs, self.autoreset, self.action_space = pool.num_envs, pool.autoreset, pool.action_space
        self.observation_space = stacked_space(pool.observation_space, stack, image_channels)
        self.episode_counts, self.close = pool.episode_counts, pool.close
        self.probe = getattr(pool, "probe", None)  # only some pools have it: for the checks before training

        def leaf_stack(leaf: gymnasium.Space) -> LeafStack | Newest:
            return LeafStack(leaf, pool.num_envs, stack, image_channels) if isinstance(leaf, spaces.Box) else Newest()

        self._stacks = tree_map(leaf_stack, space_tree(pool.observation_space))

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        obs = self.pool.reset(seed, episode_counts)
        self.episode_counts = self.pool.episode_counts
        return self._push(obs, np.arange(self.num_envs))

    def step(self, action: Tree) -> Step:
        step = self.pool.step(action)
        ended = np.flatnonzero(step.terminated | step.truncated)
        # With next-step autoreset, `obs` of an ending is the last observation, and the dummy step after it begins an episode.
        begun = np.flatnonzero(~step.valid) if self.autoreset is Autoreset.NEXT_STEP else ended
        final_obs = step.final_obs
        if final_obs is not None:
            final_obs = tree_map(lambda stack, rows: stack.last(rows, ended), self._stacks, final_obs)
        return step._replace(obs=self._push(step.obs, begun), final_obs=final_obs)

    def record_info(self, keys: Sequence[str]) -> None:
        self.pool.record_info(keys)

    def info_names(self) -> list[str]:
        return self.pool.info_names()

    def _push(self, obs: Tree, begun: NDArray[np.int64]) -> Tree:
        return tree_map(lambda stack, rows: stack.push(rows, begun), self._stacks, obs)


def stack_size(env: str, frame_stack: int | None) -> int:
    """Return how many observations a pool around that of `env` stacks: 1 if none, or if the environment itself does it."""
    return 1 if frame_stack is None or looks_like_atari(env) else frame_stack


def stack_frames(pool: Environments, stack: int, image_channels: str = "auto") -> Environments:
    """Return the pool with stacks of `stack` observations; the pool itself for stacks of one."""
    if stack == 1:
        return pool
    try:
        return StackedEnvs(pool, stack, image_channels)
    except BaseException:
        pool.close()
        raise
