"""The progress of a training run: a live display on a terminal, a line every ten seconds in a pipe or a log file."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from proxrl.common.numbers import format_number
from proxrl.log.activity import Activity, TimeSpent
from proxrl.log.drawing import TrainingDrawing, View
from proxrl.log.health import Health
from proxrl.log.sparkline import History, sparkline
from proxrl.log.terminal import TerminalOutput, hours_minutes_seconds

WINDOW_SECONDS = 20.0
# With the numbers beside it, this fits 80 columns.
CLOSING_SPARKLINE = 50


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
    def started_at(self) -> float:
        return self._start[0]

    @property
    def session(self) -> float:
        return _rate(self._start, self._recent[-1])

    @property
    def recent(self) -> float:
        return _rate(self._recent[0], self._recent[-1])

    def time_left(self, planned_steps: int, now: float) -> str:
        """Estimate from the recent rate when the planned steps are done. It goes on falling between two samples."""
        last, step = self._recent[-1]
        steps = max(0, planned_steps - step)
        if steps and self.recent <= 0:
            return "-:--:--"
        return hours_minutes_seconds(max(0, math.ceil(steps / self.recent - (now - last))) if steps else 0)


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else 0.0


class Console:
    """The display of one training session.

    The training loop calls `update` once per iteration. On a terminal `tick` draws, which a thread calls (ticker.py): so the
    display also shows what happens within an iteration, and training does not wait for the terminal. In a pipe or a log file both
    print a line when ten seconds have passed.

    Args:
        planned_steps: The step at which the run ends.
        start_step: The step at which this session begins.
        quiet: Print nothing.
        stream: Where to print, by default stdout.
        clock: A function that returns the time in seconds.
        live: False prints lines only, even on a terminal.
        activity: What the run is doing, written by the training loop.
        health: What is normal for the metrics of this run.
    """

    def __init__(
        self,
        planned_steps: int,
        start_step: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        live: bool = True,
        activity: Activity | None = None,
        health: Health | None = None,
    ) -> None:
        self._output = TerminalOutput(stream or sys.stdout, quiet, live)
        self._planned, self._start_step, self._clock = planned_steps, start_step, clock
        self._activity, self._health = activity or Activity(), health or Health()
        self._pace, self._history, self._spent = Pace(start_step, clock()), History(), TimeSpent()
        self._step, self._drawn_at, self._drawn_step = start_step, clock(), start_step
        self._mean_return: float | None = None
        self._best_return: float | None = None
        self._mean_length: float | None = None
        self._success_rate: float | None = None
        self._warned: set[str] = set()
        self._open = False
        self._lock = threading.RLock()  # of `update` and `tick`, which different threads call

    @property
    def steps_per_second(self) -> float:
        return self._pace.session

    @property
    def seconds_between_ticks(self) -> float:
        return self._output.interval if self._output.redraws else 1.0

    def recall(self, returns: Iterable[tuple[int, float]]) -> None:
        """Take the steps and returns of earlier sessions of the run, so that its curve is whole."""
        for step, value in returns:
            self._history.add(step, value)

    def start(self, text: str) -> None:
        with self._lock:
            self._output.print(text)
            self._pace = Pace(self._start_step, self._clock())
            self._drawn_at, self._open = self._clock(), True
            if self._output.redraws:
                self._show(self._drawn_at)

    def update(
        self,
        step: int,
        mean_return: float | None = None,
        best_return: float | None = None,
        mean_length: float | None = None,
        success_rate: float | None = None,
        spent: TimeSpent | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        now = self._clock()
        with self._lock:
            self._pace.add(step, now)
            self._step, self._mean_return, self._best_return = step, mean_return, best_return
            self._mean_length, self._success_rate = mean_length, success_rate
            self._spent = self._spent.plus(spent or TimeSpent())
            self._health.observe(metrics or {}, step / max(self._planned, 1))
            if mean_return is not None:
                self._history.add(step, mean_return)
            if not self._output.redraws:
                self._print_if_due(now)

    def tick(self) -> None:
        """Draw, or print a line if it is time to."""
        with self._lock:
            if self._open and self._output.redraws:
                self._show(self._clock())
            elif self._open:
                self._print_if_due(self._clock())

    def message(self, text: str) -> None:
        with self._lock:
            self._output.print(text)

    def notice(self, text: str) -> None:
        """Print a line that stays, from a signal handler: without waiting for the lock that the interrupted code may hold."""
        self._output.notice(text)

    def curve(self) -> str:
        """Return the curve of the run as one line of text, or nothing if it has no curve yet."""
        values = self._history.values(CLOSING_SPARKLINE)
        line = sparkline(values, self._output.encoding)
        return f"return {line} {format_number(values[0])} to {format_number(values[-1])}" if len(values) > 1 else ""

    def elapsed(self) -> str:
        """Return the time since this session began."""
        return hours_minutes_seconds(int(self._clock() - self._pace.started_at))

    def finish(self, text: str) -> None:
        with self._lock:
            if self._output.redraws or self._step != self._drawn_step:
                self._show(self._clock())
            self._open = False
            # The closing lines say the same in fewer words.
            self._output.close(erase=True)
            self._output.print(text)

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._output.close()

    def _print_if_due(self, now: float) -> None:
        if now - self._drawn_at >= self._output.interval:
            self._show(now)

    def _show(self, now: float) -> None:
        still_at = self._drawn_step
        self._drawn_at, self._drawn_step = now, self._step
        if self._output.quiet:
            return
        view = self._view(now)
        if self._output.redraws:
            self._output.draw(TrainingDrawing(view, self._output.encoding))
        else:
            self._output.print(self._line(view, still_at == self._step))
            self._warn_once(view)

    def _view(self, now: float) -> View:
        return View(
            step=self._step,
            planned_steps=self._planned,
            doing=str(self._activity),
            elapsed=int(now - self._pace.started_at),
            time_left=self._pace.time_left(self._planned, now),
            steps_per_second=self.steps_per_second,
            shares=self._spent.shares(),
            mean_return=self._mean_return,
            best_return=self._best_return,
            mean_length=self._mean_length,
            success_rate=self._success_rate,
            history=self._history,
            readings=self._health.readings(),
        )

    def _line(self, view: View, waiting: bool) -> str:
        """Return one line for a log file; it says what is going on only if no iteration has ended since the line before."""
        parts = [f"step {view.step:,}/{view.planned_steps:,}", f"{view.percent}%", f"return {format_number(view.mean_return)}"]
        if view.success_rate is not None:
            parts.append(f"success rate {view.success_rate:.0%}")
        parts += [f"{view.steps_per_second:,.0f} steps/s", f"{view.time_left} left"]
        return "  ".join([*parts, *([view.doing] if waiting else [])])

    def _warn_once(self, view: View) -> None:
        for text, problem in view.readings:
            if problem and problem not in self._warned:
                self._warned.add(problem)
                self._output.print(f"{text}: {problem}")
