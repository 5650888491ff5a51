"""A thread that keeps a display up to date while training is busy with one long step."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ticking(tick: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `tick` every so many seconds, from another thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            tick()

    thread = threading.Thread(target=run, name="proxrl-display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
