"""Progress for a person: a live display on a terminal, a line now and then in a pipe or a log file, nothing when quiet."""

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LIVE_SECONDS = 1 / 8
PLAIN_SECONDS = 10.0
WINDOW_SECONDS = 20.0


class Pace:
    """How fast this session goes: over all of it, and lately."""

    def __init__(self, start_step: int, now: float) -> None:
        self._start = (now, start_step)
        self._recent = deque([self._start])

    def add(self, step: int, now: float) -> None:
        # A tenth of a second apart at least, so that a fast loop does not fill the memory.
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
    """The display of one training session, drawn only from within its calls: no thread competes with training."""

    def __init__(
        self,
        planned_steps: int,
        start_step: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        live: bool = True,
    ) -> None:
        self._may_live = live
        self._planned, self._start_step, self._quiet, self._clock = planned_steps, start_step, quiet, clock
        self._stream = stream or sys.stdout
        self._live: Live | None = None
        self._pace = Pace(start_step, clock())
        self._step, self._mean_return, self._best_return = start_step, math.nan, math.nan
        self._drawn_at, self._drawn_step = clock(), start_step

    @property
    def steps_per_second(self) -> float:
        return self._pace.session

    def start(self, text: str) -> None:
        self._print(text)
        self._pace = Pace(self._start_step, self._clock())
        self._drawn_at = self._clock()
        if self._quiet or not self._may_live or not self._stream.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
            return
        # A terminal is certain here, so rich must not guess again; Windows terminals get rich's own treatment.
        rich_console = RichConsole(file=self._stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        with self._survives_a_lost_terminal():
            self._live = Live(self._drawing(), console=rich_console, auto_refresh=False)
            self._live.start(refresh=True)

    def update(self, step: int, mean_return: float | None = None, best_return: float | None = None) -> None:
        now = self._clock()
        self._pace.add(step, now)
        self._step = step
        self._mean_return = math.nan if mean_return is None else mean_return
        self._best_return = math.nan if best_return is None else best_return
        if not self._quiet and now - self._drawn_at >= (PLAIN_SECONDS if self._live is None else LIVE_SECONDS):
            self._draw(now)

    def message(self, text: str) -> None:
        self._print(text)

    def finish(self, text: str) -> None:
        if not self._quiet and (self._live is not None or self._step != self._drawn_step):
            self._draw(self._clock())
        self.close()
        self._print(text)

    def close(self) -> None:
        if self._live is not None:
            with self._survives_a_lost_terminal():
                self._live.stop()
            self._live = None

    def _draw(self, now: float) -> None:
        self._drawn_at, self._drawn_step = now, self._step
        if self._live is None:
            self._print(self._line())
        else:
            with self._survives_a_lost_terminal():
                self._live.update(self._drawing(), refresh=True)

    def _print(self, text: str) -> None:
        if self._quiet or not text:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, errors="replace").decode(encoding)
        with self._survives_a_lost_terminal():
            if self._live is None:
                print(text, file=self._stream, flush=True)
            else:
                # Unwrapped, so that a path that is longer than the terminal is wide can be copied.
                self._live.console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def _survives_a_lost_terminal(self) -> Iterator[None]:
        """A closed window or pipe ends the display, not the training."""
        try:
            yield
        except OSError:
            self._quiet = True

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
        seconds = math.ceil(steps / rate) if steps else 0
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.1f}" if abs(value) < 1e6 else f"{value:.3g}"
