"""`proxrl check`: what episodes of random play look like together."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.check.findings import Report
from proxrl.check.leaves import entry, leaves_of, named_leaves
from proxrl.check.probe import Moment

LARGE, SMALL = 100.0, 1e-3  # far from the unit scale that initial weights and step sizes are made for
KEPT_ROWS, KEPT_SIZE = 5000, 1024  # observations looked at for their scale; larger ones are images
FEWEST = 3  # episodes that must agree before it is no coincidence
FEWEST_NUMBERS, FEWEST_CATEGORIES = 10, 100  # observations that must agree: flags may be set rarely


class Numbers:
    """Observations as rows of numbers, leaf after leaf but without images, and the name of each column."""

    def __init__(self, space: gymnasium.Space) -> None:
        leaves = [(path, leaf, leaf.shape or ()) for path, leaf in named_leaves(space) if _is_kept(leaf)]
        self._space = space
        self._rows: list[NDArray[np.float64]] = []
        self.names = [f"observation{path}{entry(shape, index)}" for path, _, shape in leaves for index in range(math.prod(shape))]
        # Categories have no scale: the network does not take them for numbers.
        self.has_scale = np.array([isinstance(leaf, spaces.Box) for _, leaf, shape in leaves for _ in range(math.prod(shape))])

    def keep(self, obs: Any) -> None:
        if len(self._rows) < KEPT_ROWS:
            values = [value for _, leaf, value in leaves_of(self._space, obs) if _is_kept(leaf)]
            self._rows.append(np.concatenate([np.zeros(0), *(np.ravel(value).astype(np.float64) for value in values)]))

    @property
    def rows(self) -> NDArray[np.float64]:
        return np.array(self._rows)


def _is_kept(leaf: gymnasium.Space) -> bool:
    return math.prod(leaf.shape or ()) <= KEPT_SIZE


def look_at_endings(ended: list[tuple[int, float, Moment]], report: Report) -> None:
    lengths = {length for length, _, _ in ended}
    both = sum(last.terminated and last.truncated for _, _, last in ended)
    if both:
        always = both == len(ended)  # then one flag is a copy of the other, where a coincidence would be a note
        report.add("both-endings", f"{both} of {len(ended)} episodes end terminated and truncated", "warning" if always else None)
    elif len(ended) >= FEWEST and len(lengths) == 1 and lengths != {1} and all(last.terminated for _, _, last in ended):
        what = f"all {len(ended)} episodes terminate after exactly {lengths.pop()} steps, whatever the actions"
        report.add("time-out-as-termination", f"{what}: probably a time limit")
    if len(ended) >= FEWEST and lengths == {1}:
        report.add("one-step", f"all {len(ended)} episodes end after one step")


def look_at_rewards(rewards: NDArray[np.float64], report: Report) -> None:
    largest = float(np.abs(rewards).max())
    if not largest:
        report.add("reward-zero", f"all {len(rewards):,} rewards are 0")
    elif not SMALL <= largest <= LARGE:
        report.add("reward-scale", f"the largest reward is {largest:.3g}")


def look_at_numbers(numbers: Numbers, report: Report) -> None:
    rows = numbers.rows
    if len(rows) < FEWEST_NUMBERS or not rows.shape[1]:
        return
    varies = np.ptp(rows, 0) > 0
    telling = numbers.has_scale | (len(rows) >= FEWEST_CATEGORIES)
    constant = [numbers.names[index] for index in np.flatnonzero(~varies & telling)]
    if constant:
        shown = ", ".join(constant[:5]) + (", ..." if len(constant) > 5 else "")
        report.add("observation-constant", f"{len(constant)} of {rows.shape[1]} observed numbers never change: {shown}")
    if not numbers.has_scale.any():
        return
    sizes = np.where(numbers.has_scale, np.abs(rows).max(0), 0)
    largest = int(sizes.argmax())
    deviations = rows.std(0)[varies & numbers.has_scale]
    if sizes[largest] > LARGE or (len(deviations) and deviations.max() / deviations.min() > 10 * LARGE):
        spread = f", deviations range from {deviations.min():.2g} to {deviations.max():.2g}" if len(deviations) else ""
        report.add("observation-scale", f"{numbers.names[largest]} reaches {sizes[largest]:.3g}{spread}")
