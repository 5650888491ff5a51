"""Learning curves from run folders: one panel per environment, one line per name, seeds as a band."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxrl.errors import ProxRLError
from proxrl.runs import RunFolder

# Curves of all seeds are read off at this many points.
POINTS = 200
# A point is the mean over this share of the run before it.
SMOOTHING = 0.03


class Curve(NamedTuple):
    env: str
    name: str
    step: NDArray[np.float64]
    value: NDArray[np.float64]


def find_runs(places: Iterable[Path]) -> list[RunFolder]:
    """All runs at or below the given folders."""
    found = sorted(
        {path.parent for place in places for path in (place / "config.toml", *place.glob("**/config.toml")) if path.exists()}
    )
    if not found:
        raise ProxRLError("no runs there; give run folders, or a folder above them such as runs/CartPole-v1")
    return [RunFolder(path) for path in found]


def read_curve(run: RunFolder, metric: str) -> Curve | None:
    """None for a run that has not logged the metric yet."""
    config = run.config()
    points = []
    for line in run.metrics_path.read_text().splitlines() if run.metrics_path.exists() else []:
        entry: dict[str, Any] = json.loads(line)
        if entry.get(metric) is not None:
            points.append((entry["step"], entry[metric]))
    if not points:
        return None
    step, value = np.array(points, np.float64).T
    return Curve(config.env, config.name, step, value)


def smooth(curve: Curve, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the window before each point of the grid."""
    total = np.concatenate([[0.0], np.cumsum(curve.value)])
    last = np.searchsorted(curve.step, grid, "right")
    first = np.minimum(np.searchsorted(curve.step, grid - SMOOTHING * grid[-1], "right"), last - 1).clip(0)
    means: NDArray[np.float64] = (total[last] - total[first]) / np.maximum(last - first, 1)
    return means


def plot(places: Sequence[str | Path], out: Path, metric: str = "charts/episodic_return") -> Path:
    """Draw the runs at or below `places` into a PNG, SVG or PDF file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("plotting needs matplotlib: pip install 'proxrl[plot]'") from None
    groups: dict[str, dict[str, list[Curve]]] = defaultdict(lambda: defaultdict(list))
    for run in find_runs(map(Path, places)):
        curve = read_curve(run, metric)
        if curve is None:
            continue
        groups[curve.env][curve.name].append(curve)
    if not groups:
        raise ProxRLError(f"no run there has {metric} yet; 'proxrl train' writes it as episodes end")
    columns = min(3, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, (env, names) in zip(panels, groups.items(), strict=False):
        for name, curves in names.items():
            start = max(curve.step[0] for curve in curves)
            grid = np.linspace(start, min(curve.step[-1] for curve in curves), POINTS)
            values = np.stack([smooth(curve, grid) for curve in curves])
            label = f"{name}, {len(curves)} seed{'s' * (len(curves) > 1)}"
            (line,) = panel.plot(grid, values.mean(0), label=label)
            panel.fill_between(grid, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
        panel.set(title=env, xlabel="steps", ylabel=metric.rpartition("/")[2].replace("_", " "))
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise ProxRLError(f"can't write {out}: {' '.join(str(error).split())}") from None
    return out
