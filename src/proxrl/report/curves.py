"""Read learning curves from run folders, and compute their mean over seeds with a bootstrap interval."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import read_lines

# Points at which the curves of several seeds are compared.
POINTS = 200
# A smoothed point is the mean over the window before it, whose width is this share of the run.
SMOOTHING = 0.03
# Bootstrap resamples of the seeds, and the share of their means that an interval contains.
DRAWS, CONFIDENCE = 2000, 0.95

Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    """One metric of one run."""

    env: str
    name: str
    x: Numbers
    value: Numbers


class Band(NamedTuple):
    """The mean of several curves and its bootstrap interval. With one seed, `low` and `high` equal the mean."""

    env: str
    name: str
    seeds: int
    x: Numbers  # [POINTS]
    mean: Numbers
    low: Numbers
    high: Numbers


def read_curves(run: RunFolder, metrics: Iterable[str], by: str = "step", name: str | None = None) -> dict[str, Curve]:
    """Return the curves of those metrics that the run has logged.

    Their x axis is steps, or seconds of training if `by` is "time". Their name is that of the run, unless `name` is given.
    """
    settings = run.settings()
    points: dict[str, list[tuple[float, float]]] = {metric: [] for metric in metrics}
    for entry in read_lines(run):
        for metric, pairs in points.items():
            if entry.get(metric) is not None and entry.get(by) is not None:
                pairs.append((entry[by], entry[metric]))
    env, name = str(settings.get("env", "?")), str(settings.get("name", "?")) if name is None else name
    return {metric: Curve(env, name, *np.array(pairs, np.float64).T) for metric, pairs in points.items() if pairs}


def smooth(curve: Curve, grid: Numbers, window: float) -> Numbers:
    """Return the mean of the curve over the window before each point of the grid."""
    total = np.concatenate([[0.0], np.cumsum(curve.value)])
    last = np.searchsorted(curve.x, grid, "right")
    first = np.minimum(np.searchsorted(curve.x, grid - window, "right"), last - 1).clip(0)
    means: Numbers = (total[last] - total[first]) / np.maximum(last - first, 1)
    return means


def band(curves: Sequence[Curve], smoothing: float = SMOOTHING, points: int = POINTS) -> Band:
    """Average curves of one environment and name, up to the end of the shortest."""
    end = min(curve.x[-1] for curve in curves)
    # A run that has just started may end before the first point of another, which then has no value there.
    curves = [curve for curve in curves if curve.x[0] <= end]
    start = max(curve.x[0] for curve in curves)
    grid = np.linspace(start, end, points if end > start else 1)
    values = np.stack([smooth(curve, grid, smoothing * grid[-1]) for curve in curves])
    low, high = bootstrap(values)
    return Band(curves[0].env, curves[0].name, len(curves), grid, values.mean(0), low, high)


def bootstrap(values: Numbers, draws: int = DRAWS) -> tuple[Numbers, Numbers]:
    """Return the 95% bootstrap interval of the mean of `values` [S, ...] over seeds. The random draws are always the same."""
    seeds = len(values)
    chosen = np.random.default_rng(0).integers(seeds, size=(draws, seeds))
    # A matrix product with how often each seed was drawn: gathering the values would need draws x seeds x points numbers.
    weight = np.stack([(chosen == seed).sum(1) for seed in range(seeds)], 1) / seeds
    means = np.tensordot(weight, values, 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


def grouped(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """Group curves by environment and name, so that runs that differ only in the seed are together."""
    groups: dict[str, dict[str, list[Curve]]] = {}
    for curve in curves:
        groups.setdefault(curve.env, {}).setdefault(curve.name, []).append(curve)
    return groups
