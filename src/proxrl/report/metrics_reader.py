"""All metrics of a run as columns, read on as the run writes on, and thinned to what a page can draw."""

import json
import math
import os
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from proxrl.report.curves import Numbers
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN

# A page draws at most so many points of a run; where it has logged more lines, a point is the mean of several.
POINTS = 1000
# Enough for the eye and for reading off, and a third of the bytes.
DIGITS = 6
# Bytes by which a file is known again.
BEGINNING = 256


class MetricsReader:
    """One column of numbers for each name in metrics.jsonl, NaN where a line does not have it.

    A running job appends lines, so a reading goes on where the last one ended; a resumed one has written the file anew.
    """

    def __init__(self, run: RunFolder) -> None:
        self._path = run.metrics_path
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._rows = self._offset = self._file_number = 0
        self._beginning = b""

    def read(self) -> None:
        try:
            file = open(self._path, "rb")
        except OSError:
            self._forget()
            return
        with file:
            status, beginning = os.fstat(file.fileno()), file.read(BEGINNING)
            # A file system may give the number of a deleted file to the next one, but the first line of that has other numbers.
            same = status.st_ino == self._file_number and beginning.startswith(self._beginning)
            if not same or status.st_size < self._offset:
                self._forget()
            self._file_number, self._beginning = status.st_ino, beginning
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is just being written
                self._offset += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict) or not _is_number(entry.get("step")):
            return
        for name, value in entry.items():
            if not _is_number(value):
                continue
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * self._rows
            self._columns[name].append(value)
        self._rows += 1
        for column in self._columns.values():
            if len(column) < self._rows:
                column.append(math.nan)

    def returns(self) -> Iterator[dict[str, Any]]:
        """The lines that tell a return, with nothing but their step and it."""
        if RETURN in self._columns:
            for step, value in zip(self._columns["step"], self._columns[RETURN], strict=True):
                if not math.isnan(value):
                    yield {"step": int(step), RETURN: value}

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        known = (value for value in reversed(self._columns.get(name, ())) if not math.isnan(value))
        return next(known, None)

    def downsampled(self, points: int = POINTS) -> dict[str, Any]:
        """What a page draws: steps, seconds and every metric, in at most `points` rows; null where nothing was logged."""
        if not self._rows:
            return {"lines": 0, "step": [], "time": [], "metrics": {}}
        starts = np.linspace(0, self._rows, min(points, self._rows), endpoint=False).astype(int)
        ends = np.append(starts[1:], self._rows) - 1
        metrics = {name: _means(np.array(column), starts) for name, column in self._columns.items() if "/" in name}
        times = np.array(self._columns.get("time", [math.nan] * self._rows))[ends]
        steps = [int(step) for step in np.array(self._columns["step"])[ends]]
        return {"lines": self._rows, "step": steps, "time": _rounded(times), "metrics": dict(sorted(metrics.items()))}


def _means(values: Numbers, starts: Any) -> list[float | None]:
    """Of the parts of a column that begin at `starts`, over what is known in each."""
    known = ~np.isnan(values)
    counts = np.add.reduceat(known.astype(np.float64), starts)
    totals = np.add.reduceat(np.where(known, values, 0.0), starts)
    return _rounded(np.divide(totals, counts, out=np.full(len(starts), math.nan), where=counts > 0))


def _rounded(values: Numbers) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
