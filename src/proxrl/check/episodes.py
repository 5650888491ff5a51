"""Checks over all episodes of random play together: how they end, and the scale of their rewards and observations."""

import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.check.checked_env import Transition
from proxrl.check.findings import CheckReport
from proxrl.envs.leaves import index_text, leaves_of, named_leaves
from proxrl.envs.spaces import is_image

LARGE, SMALL = 100.0, 1e-3  # far from the unit scale that initial weights and learning rates assume
MAX_ROWS, MAX_LEAF_SIZE = 5000, 1024  # observations recorded, and numbers in a leaf of them
MIN_EPISODES = 3  # fewer episodes of the same length may be a coincidence
MIN_ROWS, MIN_ROWS_DISCRETE = 10, 100  # before a number counts as constant; discrete ones may be flags that are rarely set


class PlayedEpisode(NamedTuple):
    """A finished episode."""

    length: int
    total_reward: float
    last: Transition


class ObservationRows:
    """Observations as rows of numbers, leaf by leaf but without images, with the name of each column.

    Images are not whitened and have many pixels that rarely change, so all that counts is whether an image ever changes.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        leaves = [(path, leaf, leaf.shape or ()) for path, leaf in named_leaves(space) if _is_recorded(leaf)]
        self._space = space
        self._rows: list[NDArray[np.float64]] = []
        self.names = [
            f"observation{path}{index_text(shape, index)}" for path, _, shape in leaves for index in range(math.prod(shape))
        ]
        self.still_images: dict[str, NDArray[Any]] = {}  # by name, the first image, as long as all are like it
        # Discrete values have no scale: the network receives them as categories.
        self.has_scale = np.array([isinstance(leaf, spaces.Box) for _, leaf, shape in leaves for _ in range(math.prod(shape))])

    def add(self, obs: Any) -> None:
        """Record an observation, unless there are enough."""
        if len(self._rows) < MAX_ROWS:
            leaves = list(leaves_of(self._space, obs))
            for path, image in ((path, np.asarray(value)) for path, leaf, value in leaves if is_image(leaf)):
                if not self._rows:
                    self.still_images[path] = image.copy()
                elif path in self.still_images and not np.array_equal(self.still_images[path], image):
                    del self.still_images[path]
            values = [value for _, leaf, value in leaves if _is_recorded(leaf)]
            self._rows.append(np.concatenate([np.zeros(0), *(np.ravel(value).astype(np.float64) for value in values)]))

    @property
    def rows(self) -> NDArray[np.float64]:
        return np.array(self._rows)


def _is_recorded(leaf: gymnasium.Space) -> bool:
    return math.prod(leaf.shape or ()) <= MAX_LEAF_SIZE and not is_image(leaf)


def check_endings(episodes: list[PlayedEpisode], report: CheckReport) -> None:
    """Find endings with both flags, time limits reported as terminations, and episodes of one step."""
    lengths = {episode.length for episode in episodes}
    enough = len(episodes) >= MIN_EPISODES
    both = sum(episode.last.terminated and episode.last.truncated for episode in episodes)
    if both:
        # If every episode sets both flags, one is a copy of the other; now and then it is a coincidence.
        level = "warning" if both == len(episodes) else None
        report.add("both-endings", f"{both} of {len(episodes)} episodes end terminated and truncated", level)
    elif enough and len(lengths) == 1 and lengths != {1} and all(episode.last.terminated for episode in episodes):
        what = f"all {len(episodes)} episodes terminate after exactly {lengths.pop()} steps, whatever the actions"
        report.add("time-out-as-termination", f"{what}: probably a time limit")
    if enough and lengths == {1}:
        report.add("one-step", f"all {len(episodes)} episodes end after one step")


def check_rewards(rewards: NDArray[np.float64], report: CheckReport) -> None:
    """Find rewards that are all zero or far from the unit scale."""
    largest = float(np.abs(rewards).max())
    if not largest:
        report.add("reward-zero", f"all {len(rewards):,} rewards are 0")
    elif not SMALL <= largest <= LARGE:
        report.add("reward-scale", f"the largest reward is {largest:.3g} in absolute value")


def check_observations(observations: ObservationRows, report: CheckReport) -> None:
    """Find numbers that never change, and numbers whose scales differ widely or are far from 1."""
    rows = observations.rows
    if len(rows) >= MIN_ROWS and observations.still_images:
        names = ", ".join(f"observation{path}" for path in observations.still_images)
        report.add("observation-constant", f"no pixel ever changes in {names}")
    if len(rows) < MIN_ROWS or not rows.shape[1]:
        return
    varies = np.ptp(rows, 0) > 0
    has_enough_rows = observations.has_scale | (len(rows) >= MIN_ROWS_DISCRETE)
    constant = [observations.names[index] for index in np.flatnonzero(~varies & has_enough_rows)]
    if constant:
        names = ", ".join(constant[:5]) + (", ..." if len(constant) > 5 else "")
        report.add("observation-constant", f"{len(constant)} of {rows.shape[1]} observed numbers never change: {names}")
    if not observations.has_scale.any():
        return
    sizes = np.where(observations.has_scale, np.abs(rows).max(0), 0)
    largest = int(sizes.argmax())
    stds = rows.std(0)[varies & observations.has_scale]
    if sizes[largest] > LARGE or (len(stds) and stds.max() / stds.min() > 10 * LARGE):
        spread = f", standard deviations range from {stds.min():.2g} to {stds.max():.2g}" if len(stds) else ""
        report.add("observation-scale", f"{observations.names[largest]} reaches {sizes[largest]:.3g}{spread}")
