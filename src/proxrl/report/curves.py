"""Learning curves from run folders: metrics over steps or time, and their mean over seeds with an interval."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import read_lines

# Curves of all seeds are read off at this many points.
POINTS = 200
# A point is the mean over this share of the run before it.
SMOOTHING = 0.03
# How often seeds are drawn anew to see how far their mean depends on them, and the share of the means that an interval holds.
DRAWS, CONFIDENCE = 2000, 0.95

Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    """One metric of one run."""

    env: str
    name: str
    x: Numbers
    value: Numbers


class Band(NamedTuple):
    """The mean of some curves, and where it would lie with other seeds; `low` and `high` are the mean where there is one seed."""

    env: str
    name: str
    seeds: int
    x: Numbers  # [POINTS]
    mean: Numbers
    low: Numbers
    high: Numbers


def read_curves(run: RunFolder, metrics: Iterable[str], by: str = "step", name: str | None = None) -> dict[str, Curve]:
    """Those of the metrics that the run has logged, over its steps, or over the seconds it has trained (`by="time"`); under its
    own name, or another.
    """
    settings = run.settings()
    points: dict[str, list[tuple[float, float]]] = {metric: [] for metric in metrics}
    for entry in read_lines(run):
        for metric, found in points.items():
            if entry.get(metric) is not None and entry.get(by) is not None:
                found.append((entry[by], entry[metric]))
    env, name = str(settings.get("env", "?")), str(settings.get("name", "?")) if name is None else name
    return {metric: Curve(env, name, *np.array(found, np.float64).T) for metric, found in points.items() if found}


def smooth(curve: Curve, grid: Numbers, window: float) -> Numbers:
    """The mean over the window before each point of the grid."""
    total = np.concatenate([[0.0], np.cumsum(curve.value)])
    last = np.searchsorted(curve.x, grid, "right")
    first = np.minimum(np.searchsorted(curve.x, grid - window, "right"), last - 1).clip(0)
    means: Numbers = (total[last] - total[first]) / np.maximum(last - first, 1)
    return means


def band(curves: Sequence[Curve], smoothing: float = SMOOTHING, points: int = POINTS) -> Band:
    """Curves of one environment and name, as far as all of them go."""
    end = min(curve.x[-1] for curve in curves)
    # A run that has just begun may end before another's first point, which then has nothing to say there.
    curves = [curve for curve in curves if curve.x[0] <= end]
    start = max(curve.x[0] for curve in curves)
    grid = np.linspace(start, end, points if end > start else 1)
    values = np.stack([smooth(curve, grid, smoothing * grid[-1]) for curve in curves])
    low, high = bootstrap(values)
    return Band(curves[0].env, curves[0].name, len(curves), grid, values.mean(0), low, high)


def bootstrap(values: Numbers, draws: int = DRAWS) -> tuple[Numbers, Numbers]:
    """Where 95% of the means of as many seeds [S, ...], drawn with repetition, lie. The draws are always the same ones."""
    seeds = len(values)
    chosen = np.random.default_rng(0).integers(seeds, size=(draws, seeds))
    # Means as a matrix product, by how often each seed was drawn: gathering would take draws x seeds x points numbers.
    weight = np.stack([(chosen == seed).sum(1) for seed in range(seeds)], 1) / seeds
    means = np.tensordot(weight, values, 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


def grouped(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """By environment, then by name: runs that differ in the seed alone stand together."""
    groups: dict[str, dict[str, list[Curve]]] = {}
    for curve in curves:
        groups.setdefault(curve.env, {}).setdefault(curve.name, []).append(curve)
    return groups
