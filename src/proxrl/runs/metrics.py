"""Read `metrics.jsonl`, the record of everything a run logged."""

import json
from collections.abc import Iterator
from typing import Any

from proxrl.runs.folder import RunFolder

RETURN = "charts/episodic_return"


def read_lines(run: RunFolder) -> Iterator[dict[str, Any]]:
    """The lines of metrics.jsonl, but for one that a running job is just writing or a kill has cut short."""
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
    """What a run has logged, by name."""
    return sorted({name for entry in read_lines(run) for name in entry if name not in ("step", "time")})
