"""The progress of several runs: a line each. On a terminal the lines of running ones are redrawn in place."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from proxrl.common.numbers import format_number
from proxrl.log.terminal import TerminalOutput, hours_minutes_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

LEAST_BAR_WIDTH, MOST_BAR_WIDTH = 8, 30
LEFT_OUT = (3, 4)  # cells that a narrow terminal does not show, in this order: speed, time left


@dataclass
class RunLine:
    """What is shown about a run that is being trained."""

    label: str
    planned_steps: int
    step: int
    mean_return: float | None = None
    success_rate: float | None = None
    steps_per_second: float = 0.0

    @property
    def percent(self) -> int:
        return min(100, 100 * self.step // max(self.planned_steps, 1))

    @property
    def seconds_left(self) -> float:
        """Infinity if the speed is not known yet."""
        steps = max(0, self.planned_steps - self.step)
        if steps == 0:
            return 0.0
        return steps / self.steps_per_second if self.steps_per_second > 0 else math.inf

    def cells(self) -> list[str]:
        """Return the columns after the bar."""
        if not self.steps_per_second:
            return [f"{self.percent}%", "starting", "", ""]
        speed, left = f"{self.steps_per_second:,.0f} steps/s", f"{clock(self.seconds_left)} left"
        return [f"{self.percent}%", scores(self.mean_return, self.success_rate), speed, left]


def fitting_cells(running: Sequence[RunLine], columns: int) -> list[list[str]]:
    """Return the cells of each line, the label first: all of the same widths, and only as many as fit."""
    rows = [[line.label, *line.cells()] for line in running]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = list(range(len(widths)))
    for index in LEFT_OUT:
        if sum(widths[cell] + 2 for cell in shown) > columns:
            shown.remove(index)
    width = columns - sum(widths[cell] + 2 for cell in shown[1:]) - 2 if widths else 0
    # Labels differ most at their ends, where the seed is.
    labels = [line.label if len(line.label) <= width else f"…{line.label[-max(width - 1, 1) :]}" for line in running]
    widest = max(map(len, labels), default=0)
    return [
        [label.ljust(widest), *(row[cell].rjust(widths[cell]) for cell in shown[1:])]
        for label, row in zip(labels, rows, strict=True)
    ]


def scores(mean_return: float | None, success_rate: float | None) -> str:
    """Return the return of a run and, where it is known, its success rate."""
    success = "" if success_rate is None else f"  success {success_rate:.0%}"
    return f"return {format_number(mean_return)}{success}"


def clock(seconds: float) -> str:
    return hours_minutes_seconds(math.ceil(seconds)) if math.isfinite(seconds) else "-:--:--"


class RunLines:
    """Shows how `total` runs go. Nothing is printed if `quiet`."""

    def __init__(
        self, total: int, quiet: bool = False, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._now = total, now
        self._output = TerminalOutput(stream or sys.stdout, quiet, transient=True)
        self._drawn_at = now()

    def message(self, text: str) -> None:
        """Print a line that stays."""
        self._output.print(text)

    def update(self, running: Sequence[RunLine], ended: int, steps_waiting: int) -> None:
        """Show the runs that are being trained; others wait with so many steps together. Cheap enough to call often."""
        # Lines stay, so more runs print theirs less often.
        interval = self._output.interval * (1 if self._output.redraws else max(1, len(running)))
        if self._output.quiet or self._now() - self._drawn_at < interval:
            return
        self._drawn_at = self._now()
        if self._output.redraws:
            self._output.draw(self._drawing(running, self._total_line(running, ended, steps_waiting)))
            return
        for line in running:
            self._output.print("  ".join(filter(None, [line.label, *line.cells()])))

    def close(self) -> None:
        self._output.close()

    def _total_line(self, running: Sequence[RunLine], ended: int, steps_waiting: int) -> str:
        """Return how many runs there are of each kind, and an estimate of the time until all have ended."""
        waiting = self._total - ended - len(running)
        counts = [f"{ended} of {self._total} runs ended", f"{len(running)} running", f"{waiting} waiting" if waiting else ""]
        speed = sum(line.steps_per_second for line in running)
        steps = steps_waiting + sum(max(0, line.planned_steps - line.step) for line in running)
        # With nothing waiting, the slowest run decides.
        longest = max((line.seconds_left for line in running), default=math.inf)
        seconds = max(longest, steps / speed) if speed and math.isfinite(longest) else math.inf
        return "  ".join(filter(None, [*counts, f"{clock(seconds)} left" if math.isfinite(seconds) else ""]))

    def _drawing(self, running: Sequence[RunLine], total: str) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        cells = fitting_cells(running, shutil.get_terminal_size().columns)
        spare = shutil.get_terminal_size().columns - max((sum(len(cell) + 2 for cell in row) for row in cells), default=0)
        bar_width = min(spare - 2, MOST_BAR_WIDTH)
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in cells[0] if cells else ():
            table.add_column(no_wrap=True, overflow="ellipsis")
        for line, row in zip(running, cells, strict=True):
            bar = ProgressBar(max(line.planned_steps, 1), min(line.step, line.planned_steps), width=bar_width)
            table.add_row(Text(row[0]), *([bar] if bar_width >= LEAST_BAR_WIDTH else []), *map(Text, row[1:]))
        # First, so that it is seen even if the terminal is too low for all lines.
        return Group(Text(total, style="dim", no_wrap=True, overflow="ellipsis"), table)
