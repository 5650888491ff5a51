"""Where the numbers of a run go. The training loop holds a list of loggers and one display, and knows nothing else of them."""

from typing import Protocol


class Logger(Protocol):
    """A record of metrics by step. One that has `log_video(step, path)` too gets the mp4 files of --capture-video."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Display(Protocol):
    """What a person watches."""

    @property
    def steps_per_second(self) -> float:
        """Of this session: steps from before a resume do not count."""
        ...

    def start(self, text: str) -> None:
        """Opening lines; the clock of this session starts here."""

    def update(self, step: int, mean_return: float | None = None, best_return: float | None = None) -> None:
        """Report progress; cheap enough to call every iteration, or more often."""

    def message(self, text: str) -> None:
        """A line that stays."""

    def finish(self, text: str) -> None:
        """The last numbers and closing lines."""

    def close(self) -> None:
        """Give the terminal back, whatever happened; after `finish` there is nothing left to do."""
