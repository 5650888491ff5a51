"""Where the numbers of a run go: to a list of loggers and one display. Training knows no more about them than is written here."""

from collections.abc import Mapping
from typing import Protocol

from proxrl.log.activity import TimeSpent


class Logger(Protocol):
    """Records metrics by step. A logger with a method `log_video(step, path)` also gets the mp4 files of --capture-video."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Display(Protocol):
    """Shows a person the progress of a run."""

    @property
    def steps_per_second(self) -> float:
        """The rate of this session. Steps from before a resume do not count."""
        ...

    def start(self, text: str) -> None:
        """Print the opening lines, and start the clock of this session."""

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
        """Report an iteration: where the run stands, how long it has spent on what, and the metrics of its update. None is what
        is not known.
        """

    def message(self, text: str) -> None:
        """Print a line that stays."""

    def finish(self, text: str) -> None:
        """Show the last numbers and print the closing lines."""

    def close(self) -> None:
        """Give the terminal back after whatever happened; does nothing after `finish`."""
