"""The progress of a training run: a live display on a terminal, a line every ten seconds in a pipe or a log file."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proxrl.log.terminal import TerminalOutput, hours_minutes_seconds

WINDOW_SECONDS = 20.0


class Pace:
    """Steps per second of this session, and of its last seconds."""

    def __init__(self, start_step: int, now: float) -> None:
        self._start = (now, start_step)
        self._recent = deque([self._start])

    def add(self, step: int, now: float) -> None:
        # Samples are at least a tenth of a second apart, so that a fast loop does not fill the memory.
        if len(self._recent) > 1 and now - self._recent[-2][0] < 0.1:
            self._recent.pop()
        self._recent.append((now, step))
        while len(self._recent) > 2 and self._recent[1][0] <= now - WINDOW_SECONDS:
            self._recent.popleft()

    @property
    def session(self) -> float:
        return _rate(self._start, self._recent[-1])

    @property
    def recent(self) -> float:
        return _rate(self._recent[0], self._recent[-1])


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else 0.0


class Console:
    """The display of one training session. It draws only when it is called, so no thread competes with training.

    Args:
        planned_steps: The step at which the run ends.
        start_step: The step at which this session begins.
        quiet: Print nothing.
        stream: Where to print, by default stdout.
        clock: A function that returns the time in seconds.
        live: False prints lines only, even on a terminal.
    """

    def __init__(
        self,
        planned_steps: int,
        start_step: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        live: bool = True,
    ) -> None:
        self._output = TerminalOutput(stream or sys.stdout, quiet, live)
        self._planned, self._start_step, self._clock = planned_steps, start_step, clock
        self._pace = Pace(start_step, clock())
        self._step, self._mean_return, self._best_return = start_step, math.nan, math.nan
        self._drawn_at, self._drawn_step = clock(), start_step

    @property
    def steps_per_second(self) -> float:
        return self._pace.session

    def start(self, text: str) -> None:
        self._output.print(text)
        self._pace = Pace(self._start_step, self._clock())
        self._drawn_at = self._clock()
        if self._output.redraws:
            self._output.draw(self._drawing())

    def update(self, step: int, mean_return: float | None = None, best_return: float | None = None) -> None:
        now = self._clock()
        self._pace.add(step, now)
        self._step = step
        self._mean_return = math.nan if mean_return is None else mean_return
        self._best_return = math.nan if best_return is None else best_return
        if now - self._drawn_at >= self._output.interval:
            self._show(now)

    def message(self, text: str) -> None:
        self._output.print(text)

    def finish(self, text: str) -> None:
        if self._output.redraws or self._step != self._drawn_step:
            self._show(self._clock())
        self.close()
        self._output.print(text)

    def close(self) -> None:
        self._output.close()

    def _show(self, now: float) -> None:
        self._drawn_at, self._drawn_step = now, self._step
        if self._output.redraws:
            self._output.draw(self._drawing())
        else:
            self._output.print(self._line())

    def _line(self) -> str:
        parts = [f"step {self._steps()}", f"{self._percent()}%", f"return {_number(self._mean_return)}"]
        return "  ".join([*parts, f"{self.steps_per_second:,.0f} steps/s", f"{self._time_left()} left"])

    def _drawing(self) -> Group:
        """Two lines that fit a narrow terminal."""
        top = Table.grid(padding=(0, 1), expand=True)
        top.add_column(ratio=1)
        top.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=max(self._planned, 1), completed=min(self._step, self._planned))
        top.add_row(bar, Text(f"{self._percent()}%  {self._time_left()} left"))
        numbers = [f"step {self._steps()}", f"return {_number(self._mean_return)}", f"best {_number(self._best_return)}"]
        bottom = Text("  ".join([*numbers, f"{self.steps_per_second:,.0f} steps/s"]), no_wrap=True, overflow="ellipsis")
        return Group(top, bottom)

    def _steps(self) -> str:
        return f"{self._step:,}/{self._planned:,}"

    def _percent(self) -> int:
        return min(100, 100 * self._step // max(self._planned, 1))

    def _time_left(self) -> str:
        steps, rate = max(0, self._planned - self._step), self._pace.recent
        if steps and rate <= 0:
            return "-:--:--"
        return hours_minutes_seconds(math.ceil(steps / rate) if steps else 0)


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}"
