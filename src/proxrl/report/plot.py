"""Learning curves as a picture or as text: a panel per environment and metric, a line per name."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxrl.common.files import check_writable, one_line_errors, replacing
from proxrl.errors import ProxRLError
from proxrl.report.curves import CONFIDENCE, POINTS, SMOOTHING, Band, Curve, Numbers, band, grouped, read_curves
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_runs, labels
from proxrl.runs.metrics import RETURN, logged_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"
TEXT_WIDTH = 60
MOST_COLUMNS = 3
FORMATS = (".png", ".svg", ".pdf")

# environment → metric → one band for each name
Bands = dict[str, dict[str, list[Band]]]


def collect_bands(
    places: Sequence[str | Path],
    metrics: Sequence[str] = (RETURN,),
    by: str = "step",
    smoothing: float = SMOOTHING,
    runs_dir: str | Path = RUNS_DIR,
) -> Bands:
    """The curves of all runs at or below `places`, those that differ in the seed alone as one."""
    if not 0 <= smoothing < 1:
        raise ProxRLError(f"--smoothing is {smoothing:g}, but is a share of the run, from 0 to less than 1")
    runs = find_runs(places, runs_dir)
    settings = [run.settings() for run in runs]
    names = labels([(run.path, str(told["env"]), str(told.get("name", "?"))) for run, told in zip(runs, settings, strict=True)])
    read = [read_curves(run, metrics, by, name) for run, name in zip(runs, names, strict=True)]
    bands: Bands = {}
    for metric in metrics:
        curves = [found[metric] for found in read if metric in found]
        if not curves:
            known = sorted({name for run in runs for name in logged_metrics(run)})
            advice = f"they have {', '.join(known)}" if known else "'proxrl train' writes it as episodes end"
            raise ProxRLError(f"no run there has {metric} yet; {advice}")
        for env, groups in grouped(curves).items():
            bands.setdefault(env, {})[metric] = [band(group, smoothing, grid_points(group)) for group in groups.values()]
        silent = [str(run.path) for run, found in zip(runs, read, strict=True) if metric not in found]
        if silent:
            print(f"proxrl: without {metric} yet, and left out: {', '.join(silent)}", file=sys.stderr)
    return bands


def grid_points(curves: Sequence[Curve]) -> int:
    """No more than the longest curve has: between them a line would stand still, and then jump."""
    return min(POINTS, max(len(curve.x) for curve in curves))


def plot(
    places: Sequence[str | Path],
    out: Path,
    metrics: Sequence[str] = (RETURN,),
    by: str = "step",
    smoothing: float = SMOOTHING,
    runs_dir: str | Path = RUNS_DIR,
) -> Path:
    """Draw the runs at or below `places` into a PNG, SVG or PDF file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("plotting needs matplotlib: pip install 'proxrl[plot]' (--text needs nothing)") from None
    from matplotlib.ticker import EngFormatter

    check_figure(out)
    bands = collect_bands(places, metrics, by, smoothing, runs_dir)
    cells = layout(list(bands), metrics)
    rows, columns = (1 + max(cell[axis] for cell in cells.values()) for axis in (0, 1))
    figure = Figure(figsize=(4.6 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for (env, metric), cell in cells.items():
        axes, lines = grid[cell], bands[env].get(metric, [])
        size, unit = x_unit(max((line.x[-1] for line in lines), default=0.0), by)
        for line in lines:
            (drawn,) = axes.plot(line.x / size, line.mean, label=label(line), marker="o" if len(line.x) == 1 else None)
            axes.fill_between(line.x / size, line.low, line.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
        axes.set(title=env, xlabel=unit, ylabel=readable(metric))
        if by == "step":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    for cell in np.ndindex(grid.shape):
        grid[cell].set_visible(cell in cells.values())
    return save_figure(figure, out)


def save_figure(figure: "Figure", out: Path) -> Path:
    """Whole or not at all, in the format that the name's ending tells."""
    check_figure(out)
    with one_line_errors("write", out), replacing(out) as temporary:
        figure.savefig(temporary, dpi=120, format=out.suffix.removeprefix("."))
    return out


def check_figure(out: Path) -> None:
    """Refuse a file that can't be written, before anything is computed for it."""
    if out.suffix not in FORMATS:
        raise ProxRLError(f"can't write {out}: its name must end in {', '.join(FORMATS)}")
    check_writable(out)


def layout(envs: Sequence[str], metrics: Sequence[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Row and column of each panel: several metrics below each other, a single one side by side and then in the next row."""
    if len(metrics) > 1:
        return {(env, metric): (row, column) for column, env in enumerate(envs) for row, metric in enumerate(metrics)}
    return {(env, metrics[0]): divmod(number, MOST_COLUMNS) for number, env in enumerate(envs)}


def x_unit(longest: float, by: str) -> tuple[float, str]:
    """What one unit of the axis is, and its name."""
    if by == "step":
        return 1.0, "steps"
    size, unit = (3600.0, "hours") if longest >= 3600 else (60.0, "minutes") if longest >= 60 else (1.0, "seconds")
    return size, f"{unit} of training"


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
                size, unit = x_unit(line.x[-1], by)
                end = f"{line.x[-1]:,.0f}" if by == "step" else f"{line.x[-1] / size:.1f}"
                rows.append(f"{env}  {readable(metric)}  {label(line)}")
                rows.append(f"{sparkline(line.mean)}  {line.mean[0]:.4g} → {line.mean[-1]:.4g} after {end} {unit}")
    return "\n".join(rows)


def sparkline(values: Numbers, width: int = TEXT_WIDTH) -> str:
    chosen = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = float(chosen.min()), float(chosen.max())
    heights = (chosen - low) / (high - low) if high > low else np.zeros(len(chosen))
    return "".join(BARS[math.floor(height * (len(BARS) - 1) + 0.5)] for height in heights)
