"""Single observations for an agent that was trained on stacks of them: it keeps the last ones itself."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.envs.buffers import stored_dtype
from proxrl.envs.spaces import is_image
from proxrl.errors import ProxRLError
from proxrl.types import Tree


class AgentFrames:
    """The last observations of the current episode, or of the episodes of a batch."""

    def __init__(self, stack: int) -> None:
        self.stack = stack
        self.reset()

    def reset(self) -> None:
        self.frames: dict[tuple[Any, ...], NDArray[Any]] = {}  # [rows, stack, ...] of each Box, by its place in the observation
        self.begun: NDArray[np.bool_] | None = None  # [rows] whether the next observations begin an episode; None if none does

    def restart(self, begun: NDArray[np.bool_]) -> None:
        """Begin an episode in these rows [N] with the next observation."""
        self.begun = begun if self.begun is None else self.begun | begun

    def stacked(self, space: gymnasium.Space, obs: Tree, advance: bool) -> Tree:
        """Return the stack that ends with this observation, or with these [N, ...]; `space` is that of stacks.

        `advance` keeps the observation for the stacks that follow. What is a stack already is returned unchanged.
        """
        if self.stack == 1:
            return obs
        frames: dict[tuple[Any, ...], NDArray[Any]] = {}
        try:
            stacks = self._stacked(space, obs, (), frames)
        except ValueError:
            return obs
        if advance:
            self.frames, self.begun = frames, None
        return stacks

    def _stacked(self, space: gymnasium.Space, obs: Tree, place: tuple[Any, ...], frames: dict[Any, Any]) -> Tree:
        if isinstance(space, spaces.Dict) and isinstance(obs, dict):
            known = {key: part for key, part in obs.items() if key in space.spaces}
            return obs | {key: self._stacked(space[key], part, (*place, key), frames) for key, part in known.items()}
        if isinstance(space, spaces.Tuple) and isinstance(obs, tuple | list) and len(obs) == len(space):
            return tuple(self._stacked(space[n], part, (*place, n), frames) for n, part in enumerate(obs))
        if not isinstance(space, spaces.Box):
            return obs
        rows, single = single_observations(space, self.stack, obs)
        repeated = np.repeat(rows[:, None], self.stack, axis=1)
        before = self.frames.get(place, repeated)
        if len(before) != len(rows):
            raise ProxRLError(
                f"there are {len(rows)} observations, but there were {len(before)} before; call agent.reset() between episodes,"
                " or stack the observations of each yourself"
            )
        if self.begun is not None and len(self.begun) == len(rows):
            before = np.where(self.begun.reshape(-1, *[1] * (before.ndim - 1)), repeated, before)
        frames[place] = np.concatenate([before[:, 1:], rows[:, None]], axis=1)
        stacks = frames[place].reshape(len(rows), *space.shape)
        return stacks[0] if single else stacks


def single_observations(space: spaces.Box, stack: int, obs: Any) -> tuple[NDArray[Any], bool]:
    """Return observations as rows of what a stack in `space` consists of, and whether it was a single one.

    Raises a ValueError for anything else, such as a whole stack.
    """
    array = np.asarray(obs, stored_dtype(space))
    frame = (space.shape[0] // stack, *space.shape[1:])
    readings = [(array[None], True), *([(array, False)] if array.ndim and len(array) else [])]
    for rows, single in readings:
        if rows.shape[1:] == frame:
            return rows, single
        if is_image(space) and rows.shape[1:] == (*frame[1:], frame[0]):
            return np.moveaxis(rows, -1, 1), single
        if is_image(space) and frame[0] == 1 and rows.shape[1:] == frame[1:]:
            return rows[:, None], single
    for rows, single in readings:  # arrays that were flattened
        is_stack = array.shape == space.shape  # which for numbers looks like a batch of them
        if not is_image(space) and not is_stack and np.prod(rows.shape[1:]) == frame[0]:
            return rows.reshape(len(rows), *frame), single
    raise ValueError("not a single observation")
