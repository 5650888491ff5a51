"""`MetricsReader`: read metrics.jsonl incrementally while a run writes it, and downsample it for the page."""

import json
import math
import os
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from proxrl.report.curves import Numbers
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN, is_number

# The page gets at most this many points of a run; if more lines were logged, a point is the mean of several.
POINTS = 1000
# Significant digits of the numbers on the page: precise enough to read, at a third of the size.
DIGITS = 6
# Bytes at the start of a file by which it is recognized.
BEGINNING = 256


class MetricsReader:
    """One column of numbers for each name in metrics.jsonl, with NaN in lines that lack it.

    A running job appends lines, so `read` continues where the last call ended. A resumed run rewrites the file, which is then
    read from the start.
    """

    def __init__(self, run: RunFolder) -> None:
        self._path = run.metrics_path
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._rows = self._offset = self._inode = 0
        self._beginning = b""

    def read(self) -> None:
        """Read the lines that were written since the last call."""
        try:
            if not self._path.is_file():  # a pipe or device could be read forever
                raise FileNotFoundError
            file = open(self._path, "rb")
        except OSError:
            self._clear()
            return
        with file:
            status, beginning = os.fstat(file.fileno()), file.read(BEGINNING)
            # A file system may reuse the inode of a deleted file, but the first line of the new file has other numbers.
            same_file = status.st_ino == self._inode and beginning.startswith(self._beginning)
            if not same_file or status.st_size < self._offset:
                self._clear()
            self._inode, self._beginning = status.st_ino, beginning
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._offset += len(line)
                self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(entry, dict) or not is_number(entry.get("step")):
            return
        for name, value in entry.items():
            if not is_number(value):
                continue
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * self._rows
            self._columns[name].append(value)
        self._rows += 1
        for column in self._columns.values():
            if len(column) < self._rows:
                column.append(math.nan)

    def returns(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that have a return, reduced to step and return."""
        if RETURN in self._columns:
            for step, value in zip(self._columns["step"], self._columns[RETURN], strict=True):
                if not math.isnan(value):
                    yield {"step": int(step), RETURN: value}

    def last(self, name: str) -> float | None:
        """Return the latest value of a metric, or None."""
        values = (value for value in reversed(self._columns.get(name, ())) if not math.isnan(value))
        return next(values, None)

    def downsampled(self, points: int = POINTS) -> dict[str, Any]:
        """Return steps, seconds and all metrics in at most `points` rows, as JSON; null if a row has no value."""
        if not self._rows:
            return {"lines": 0, "step": [], "time": [], "metrics": {}}
        starts = np.linspace(0, self._rows, min(points, self._rows), endpoint=False).astype(int)
        ends = np.append(starts[1:], self._rows) - 1
        metrics = {name: _means(np.array(column), starts) for name, column in self._columns.items() if "/" in name}
        times = np.array(self._columns.get("time", [math.nan] * self._rows))[ends]
        steps = [int(step) for step in np.array(self._columns["step"])[ends]]
        return {"lines": self._rows, "step": steps, "time": _rounded(times), "metrics": dict(sorted(metrics.items()))}


def _means(values: Numbers, starts: Any) -> list[float | None]:
    """Return the means of the sections of a column that begin at `starts`, ignoring NaN."""
    present = ~np.isnan(values)
    counts = np.add.reduceat(present.astype(np.float64), starts)
    totals = np.add.reduceat(np.where(present, values, 0.0), starts)
    return _rounded(np.divide(totals, counts, out=np.full(len(starts), math.nan), where=counts > 0))


def _rounded(values: Numbers) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values.tolist()]
