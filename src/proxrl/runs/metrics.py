"""Read `metrics.jsonl`, which contains everything that a run logged."""

import json
from collections.abc import Iterator
from typing import Any

from proxrl.runs.folder import RunFolder

RETURN = "charts/episodic_return"


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


def logged_metrics(run: RunFolder) -> list[str]:
    """Return the names of the metrics that a run has logged."""
    return sorted({name for entry in read_lines(run) for name in entry if name not in ("step", "time")})
