"""The display of a study: a line for every trial that ends, and on a terminal the running trials below."""

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Group
from rich.text import Text

from proxrl.common.numbers import format_number
from proxrl.log.terminal import TerminalOutput, hours_minutes_seconds
from proxrl.tuning.study import REPORTS_PER_RUN, Running


class StudyDisplay:
    """Shows how a study of `total` trials goes, of which `done` have ended in earlier sessions."""

    def __init__(self, total: int, seeds: int, done: int, quiet: bool, stream: TextIO | None = None) -> None:
        self._total, self._reports_per_trial = total, seeds * REPORTS_PER_RUN
        self._output = TerminalOutput(stream or sys.stdout, quiet, transient=True)
        self._done_before, self._started_at = done, time.monotonic()

    def trial(self, index: int, outcome: str, done: int, best: str) -> None:
        """Print the line of a trial that has ended."""
        self.message("  ".join(filter(None, [f"trial {index}", outcome, best, f"{done}/{self._total}", self._time_left(done)])))

    def update(self, running: Sequence[Running]) -> None:
        """Show the running trials."""
        if not self._output.redraws:
            return
        lines = []
        for trial in running:
            percent = 100 * trial.reports // self._reports_per_trial
            lines.append(Text(f"trial {trial.index}  {percent}%  return {format_number(trial.value)}", style="dim"))
        self._output.draw(Group(*lines))

    def message(self, text: str) -> None:
        self._output.print(text)

    def notice(self, text: str) -> None:
        """Print a line from a signal handler; it is shown with the next drawing."""
        self._output.notice(text)

    def close(self) -> None:
        self._output.close()

    def _time_left(self, done: int) -> str:
        """Estimate the time left from the trials of this session."""
        done_now, left = done - self._done_before, self._total - done
        if done_now < 1 or left < 1:
            return ""
        return f"{hours_minutes_seconds(round((time.monotonic() - self._started_at) / done_now * left))} left"
