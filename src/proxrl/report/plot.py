"""Draw learning curves as a figure or as text: a panel per environment and metric, a line per name."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxrl.common.files import check_writable, one_line_errors, replacing
from proxrl.errors import ProxRLError, printable
from proxrl.report.curves import CONFIDENCE, POINTS, SMOOTHING, Band, Curve, Numbers, band, grouped, read_curves
from proxrl.runs.folder import RUNS_DIR
from proxrl.runs.lookup import find_runs, labels
from proxrl.runs.metrics import RETURN, full_name, logged_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "▁▂▃▄▅▆▇█"
TEXT_WIDTH = 60
MAX_COLUMNS = 3
FORMATS = (".png", ".svg", ".pdf")

# environment → metric → one band for each name
Bands = dict[str, dict[str, list[Band]]]


def collect_bands(
    runs: Sequence[str | Path],
    metrics: Sequence[str] = (RETURN,),
    by: str = "step",
    smoothing: float = SMOOTHING,
    runs_dir: str | Path = RUNS_DIR,
) -> Bands:
    """Return the bands of all runs that `runs` stand for, see `find_runs`; runs that differ only in the seed share a band.

    Metrics may have short names, see `full_name`; in the result they have their full ones.
    """
    if not 0 <= smoothing < 1:
        raise ProxRLError(f"--smoothing is {smoothing:g}, but must be a share of the run: at least 0 and less than 1")
    folders = find_runs(runs, runs_dir)
    settings = [(folder.path, folder.settings()) for folder in folders]
    logged = sorted({name for folder in folders for name in logged_metrics(folder)})
    metrics = list(dict.fromkeys(full_name(metric, logged) for metric in metrics))
    names = labels([(path, str(values["env"]), str(values.get("name", "?"))) for path, values in settings])
    curves_of_runs = [read_curves(folder, metrics, by, name) for folder, name in zip(folders, names, strict=True)]
    bands: Bands = {}
    for metric in metrics:
        curves = [by_metric[metric] for by_metric in curves_of_runs if metric in by_metric]
        if not curves:
            advice = f"they have {', '.join(logged)}" if logged else "'proxrl train' writes it as episodes end"
            raise ProxRLError(f"no run there has {metric} yet; {advice}")
        for env, groups in grouped(curves).items():
            bands.setdefault(env, {})[metric] = [band(group, smoothing, grid_points(group)) for group in groups.values()]
        without = [str(folder.path) for folder, by_metric in zip(folders, curves_of_runs, strict=True) if metric not in by_metric]
        if without:
            omitted = f"proxrl: omitted because {metric} is not logged yet: {', '.join(without)}"
            print(printable(omitted), file=sys.stderr)
    return bands


def grid_points(curves: Sequence[Curve]) -> int:
    """Return at most as many points as the longest curve has: with more, the line would be flat between them, and then jump."""
    return min(POINTS, max(len(curve.x) for curve in curves))


def plot(
    runs: Sequence[str | Path],
    out: Path,
    metrics: Sequence[str] = (RETURN,),
    by: str = "step",
    smoothing: float = SMOOTHING,
    runs_dir: str | Path = RUNS_DIR,
) -> Path:
    """Draw the runs that `runs` stand for, see `find_runs`, into a PNG, SVG or PDF file, and return its path."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("plotting needs matplotlib: pip install 'proxrl[plot]' (--text works without it)") from None
    from matplotlib.ticker import EngFormatter

    check_figure(out)
    bands = collect_bands(runs, metrics, by, smoothing, runs_dir)
    cells = layout(list(bands), list(dict.fromkeys(metric for by_metric in bands.values() for metric in by_metric)))
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
    """Write the figure atomically, in the format of the file name's suffix."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    check_figure(out)
    for text in figure.findobj(Text):
        text.set_text(printable(text.get_text()))
        text.set_parse_math(False)  # a dollar sign in a name is no formula
    with rc_context({"text.parse_math": False}), one_line_errors("write", out), replacing(out) as temporary:
        figure.savefig(temporary, dpi=120, format=out.suffix.removeprefix("."))
    return out


def check_figure(out: Path) -> None:
    """Raise an error if the file can't be written, so that nothing is computed in vain."""
    if out.suffix not in FORMATS:
        raise ProxRLError(f"can't write {out}: its name must end in {', '.join(FORMATS)}")
    check_writable(out)


def layout(envs: Sequence[str], metrics: Sequence[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the row and column of each panel.

    With several metrics, each has a row and each environment a column. With one metric, the environments fill rows of three.
    """
    if len(metrics) > 1:
        return {(env, metric): (row, column) for column, env in enumerate(envs) for row, metric in enumerate(metrics)}
    return {(env, metrics[0]): divmod(number, MAX_COLUMNS) for number, env in enumerate(envs)}


def x_unit(longest: float, by: str) -> tuple[float, str]:
    """Return the size of one unit of the x axis, and its name."""
    if by == "step":
        return 1.0, "steps"
    size, unit = (3600.0, "hours") if longest >= 3600 else (60.0, "minutes") if longest >= 60 else (1.0, "seconds")
    return size, f"{unit} of training"


def label(line: Band) -> str:
    """Return the text of the legend. A single seed has no interval, so none is mentioned."""
    return f"{line.name}, {line.seeds} seeds, mean and {CONFIDENCE:.0%}" if line.seeds > 1 else f"{line.name}, 1 seed"


def readable(metric: str) -> str:
    """Return the name of a metric for people: "episodic return" for "charts/episodic_return"."""
    return metric.rpartition("/")[2].replace("_", " ")


def as_text(bands: Bands, by: str = "step") -> str:
    """Return a sparkline for each band, for a terminal."""
    rows = []
    for env, metrics in bands.items():
        for metric, lines in metrics.items():
            for line in lines:
                size, unit = x_unit(line.x[-1], by)
                end = f"{line.x[-1]:,.0f}" if by == "step" else f"{line.x[-1] / size:.1f}"
                rows.append(printable(f"{env}  {readable(metric)}  {label(line)}"))
                rows.append(f"{sparkline(line.mean)}  {line.mean[0]:.4g} → {line.mean[-1]:.4g} after {end} {unit}")
    return "\n".join(rows)


def sparkline(values: Numbers, width: int = TEXT_WIDTH) -> str:
    """Return the values as block characters, at most `width` of them."""
    chosen = values[np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)]
    low, high = float(chosen.min()), float(chosen.max())
    heights = (chosen - low) / (high - low) if high > low else np.zeros(len(chosen))
    return "".join(BARS[math.floor(height * (len(BARS) - 1) + 0.5)] for height in heights)
