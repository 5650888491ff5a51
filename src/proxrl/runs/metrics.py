"""Read `metrics.jsonl`, which contains everything that a run logged."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from proxrl.runs.folder import RunFolder

RETURN = "charts/episodic_return"
MEAN_RETURN = "charts/mean_return"  # of the last 100 episodes, as the display shows it
SHORT_NAMES = {"return": RETURN, "length": "charts/episodic_length", "success": "charts/success_rate"}


def read_lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl, without one that is being written or was cut short when the run was killed."""
    if not run.metrics_path.is_file():  # a pipe or device could be read forever
        return
    with open(run.metrics_path, "rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            numbers = {name: value for name, value in entry.items() if is_number(value)} if isinstance(entry, dict) else {}
            if "step" in numbers:
                yield numbers


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that fits a float: the file may be anybody's."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def full_name(metric: str, logged: Iterable[str]) -> str:
    """Return the logged metric that a name stands for: a full name, a short name, or the part after the slash if only one
    metric has it. Other names are returned unchanged.
    """
    names = set(logged)
    if metric in names:
        return metric
    if metric in SHORT_NAMES:
        return SHORT_NAMES[metric]
    ending = [name for name in names if name.partition("/")[2] == metric]
    return ending[0] if len(ending) == 1 else metric


def logged_metrics(run: RunFolder) -> list[str]:
    """Return the names of the metrics that a run has logged."""
    return sorted({name for entry in read_lines(run) for name in entry if name not in ("step", "time")})
