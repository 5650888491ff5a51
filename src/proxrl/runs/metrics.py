"""Read `metrics.jsonl`, which contains everything that a run logged."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from proxrl.runs.folder import RunFolder

RETURN = "charts/episodic_return"
SHORT_NAMES = {"return": RETURN, "length": "charts/episodic_length", "success": "charts/success_rate"}


def read_lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl, without one that is being written or was cut short when the run was killed."""
    if not run.metrics_path.exists():
        return
    with open(run.metrics_path, "rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "step" in entry:
                yield entry


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
