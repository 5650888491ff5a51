"""Progress bars that disappear when they are done. In a pipe or a log file there is no bar."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

from proxrl.errors import printable
from proxrl.log.terminal import TerminalOutput


class TransientBar:
    """A text, a bar, a second text and the time elapsed, as a context manager."""

    def __init__(self, stream: TextIO, title: str) -> None:
        # Redrawn by a thread, so that the elapsed time advances during a long step.
        self.output = TerminalOutput(stream, transient=True, auto_refresh=True)
        self._title = title
        self._bars: Any = None

    def __enter__(self) -> Self:
        if self.output.redraws:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            # Without markup, since a path may contain brackets.
            before, after = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[after]}"))
            columns = before, BarColumn(), after, TimeElapsedColumn()
            self._bars = Progress(*columns, auto_refresh=False)
            self._task = self._bars.add_task(self._title, total=None, after="")
            self.output.draw(self._bars)
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    def update(self, before: str, completed: float | None, total: float | None, after: str = "") -> None:
        """Set the texts before and after the bar, and how much of it is filled; a total of None is unknown."""
        if self._bars is not None:
            self._bars.update(self._task, description=before, completed=completed, total=total, after=after)


@contextmanager
def episodes_bar(title: str, episodes: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr, and yield a function to call after every step with the episodes that it finished and the number of
    its valid steps.
    """
    finished_so_far, steps_so_far = 0, 0

    def watch(finished: int, steps: int) -> None:
        nonlocal finished_so_far, steps_so_far
        finished_so_far, steps_so_far = finished_so_far + finished, steps_so_far + steps
        counts = f"{finished_so_far}/{episodes} episodes  {steps_so_far:,} steps"
        bar.update(title, finished_so_far, episodes, counts)

    # On stderr, since the output of a command may be piped.
    title = printable(title)
    with TransientBar(sys.stderr, title) as bar:
        watch(0, 0)
        yield watch
