"""A bar for what takes a while, on a terminal; nothing in a pipe or a log file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def episodes_bar(title: str, episodes: int) -> Iterator[Callable[[int, int], None]]:
    """A function to call after every step, with the episodes that it finished and the steps that count."""
    if not sys.stderr.isatty():
        yield lambda episodes, steps: None  # noqa: ARG005 - the signature of who watches
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Beside the output, which may be piped; gone at the end, when the result is there to see.
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} episodes  {task.fields[steps]:,} steps"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    taken = 0
    with bar:
        task = bar.add_task(title, total=episodes, steps=0)

        def watch(finished: int, steps: int) -> None:
            nonlocal taken
            taken += steps
            bar.update(task, advance=finished, steps=taken)

        yield watch
