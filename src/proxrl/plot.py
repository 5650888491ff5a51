"""Learning curves as a picture or as text: a column per environment, a row per metric, a line per name."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxrl.curves import CONFIDENCE, RETURN, SMOOTHING, Band, Curve, Numbers, band, grouped, read_curves
from proxrl.errors import ProxRLError
from proxrl.runs import find_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = "▁▂▃▄▅▆▇█"
TEXT_WIDTH = 60
AXES = {"step": "steps", "time": "hours of training"}

# environment → metric → one band for each name
Bands = dict[str, dict[str, list[Band]]]


def collect_bands(
    places: Sequence[str | Path], metrics: Sequence[str] = (RETURN,), by: str = "step", smoothing: float = SMOOTHING
) -> Bands:
    """The curves of all runs at or below `places`, those that differ in the seed alone as one."""
    if not 0 <= smoothing < 1:
        raise ProxRLError(f"--smoothing is {smoothing:g}, but is a share of the run, from 0 to less than 1")
    read = [read_curves(run, metrics, by) for run in find_runs(places)]
    bands: Bands = {}
    for metric in metrics:
        curves: list[Curve] = [found[metric] for found in read if metric in found]
        if not curves:
            logged = sorted({name for run in find_runs(places) for name in read_names(run)})
            known = f"they have {', '.join(logged)}" if logged else "'proxrl train' writes it as episodes end"
            raise ProxRLError(f"no run there has {metric} yet; {known}")
        for env, names in grouped(curves).items():
            bands.setdefault(env, {})[metric] = [band(group, smoothing) for group in names.values()]
    return bands


def read_names(run: Any) -> list[str]:
    from proxrl.curves import read_lines

    return sorted({name for entry in read_lines(run) for name in entry if "/" in name})


def plot(
    places: Sequence[str | Path],
    out: Path,
    metrics: Sequence[str] = (RETURN,),
    by: str = "step",
    smoothing: float = SMOOTHING,
) -> Path:
    """Draw the runs at or below `places` into a PNG, SVG or PDF file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("plotting needs matplotlib: pip install 'proxrl[plot]' (--text needs nothing)") from None
    bands = collect_bands(places, metrics, by, smoothing)
    panels = [(env, metric) for env in bands for metric in bands[env]]
    # One metric: environments side by side, three in a row. Several: a column for each environment.
    columns = min(3, len(bands)) if len(metrics) == 1 else len(bands)
    rows = math.ceil(len(bands) / columns) if len(metrics) == 1 else len(metrics)
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.ravel():
        axes.set_visible(False)
    places_of = grid.ravel() if len(metrics) == 1 else [grid[metrics.index(m), list(bands).index(env)] for env, m in panels]
    for axes, (env, metric) in zip(places_of, panels, strict=False):
        axes.set_visible(True)
        for line in bands[env][metric]:
            draw_band(axes, line, by)
        axes.set(title=env, xlabel=AXES[by], ylabel=readable(metric))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as error:
        raise ProxRLError(f"can't write {out}: {' '.join(str(error).split())}") from None
    return out


def draw_band(axes: "Axes", line: Band, by: str) -> None:
    x = line.x / 3600 if by == "time" else line.x
    (drawn,) = axes.plot(x, line.mean, label=label(line))
    axes.fill_between(x, line.low, line.high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def label(line: Band) -> str:
    """The interval is named only where there is one: it says nothing about a single seed."""
    return f"{line.name}, {line.seeds} seeds, mean and {CONFIDENCE:.0%}" if line.seeds > 1 else f"{line.name}, 1 seed"


def readable(metric: str) -> str:
    return metric.rpartition("/")[2].replace("_", " ")


def as_text(bands: Bands, by: str = "step") -> str:
    """A sparkline for each band, for a terminal."""
    rows = []
    for env, metrics in bands.items():
        for metric, lines in metrics.items():
            for line in lines:
                end = f"{line.x[-1]:,.0f} steps" if by == "step" else f"{line.x[-1] / 3600:.2f} h"
                rows.append(f"{env}  {readable(metric)}  {label(line)}")
                rows.append(f"{sparkline(line.mean)}  {line.mean[0]:.4g} → {line.mean[-1]:.4g} after {end}")
    return "\n".join(rows)


def sparkline(values: Numbers, width: int = TEXT_WIDTH) -> str:
    chosen = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = float(chosen.min()), float(chosen.max())
    heights = (chosen - low) / (high - low) if high > low else np.zeros(len(chosen))
    return "".join(BARS[round(height * (len(BARS) - 1))] for height in heights)
