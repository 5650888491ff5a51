"""`metrics.jsonl`: one JSON object per line, from which plots and reports are made."""

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

from proxrl.common.files import one_line_errors, replacing


class JsonlLogger:
    """Appends lines. A run resumed at `resume_step` first deletes the lines of later steps; None deletes all lines."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        with one_line_errors("write", path):
            lines = _lines_up_to(path, resume_step)
            if path.exists() and path.read_bytes() != b"".join(lines):
                with replacing(path) as temporary:
                    temporary.write_bytes(b"".join(lines))
            self._file = open(path, "ab")
        # The clock continues from the last line, so that `time` is the time spent on this run.
        earlier = float(json.loads(lines[-1]).get("time", 0.0)) if lines else 0.0
        self._started = time.perf_counter() - earlier

    def log(self, step: int, metrics: dict[str, float]) -> None:
        seconds = round(time.perf_counter() - self._started, 3)
        line = {"step": step, "time": seconds, **{name: _finite(value) for name, value in metrics.items()}}
        with one_line_errors("write", self._path):
            # Flushed, so that readers see the line and a killed process loses nothing. Syncing each line to disk, which would
            # survive a power cut, costs too much.
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `log` has already raised for a line that could not be written
            self._file.close()


def _finite(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    number = float(value)
    return number if math.isfinite(number) else None


def _lines_up_to(path: Path, resume_step: int | None) -> list[bytes]:
    if resume_step is None or not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= resume_step]


def _step_of(line: bytes) -> float:
    """Return the step of a line, or infinity if the line is incomplete because the process was killed."""
    try:
        entry: dict[str, Any] = json.loads(line)
        return float(entry["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
