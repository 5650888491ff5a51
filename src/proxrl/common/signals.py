"""Ctrl-C and SIGTERM as a wish to stop, which is fulfilled once everything is saved."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SECONDS_OF_ONE_SIGTERM = 5.0


def nothing() -> None:
    pass


@contextmanager
def stopping_signals(message: str, ask: Callable[[], None] = nothing, several: bool = False) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM calls `ask` and is kept in the list that is given; a second one does not wait. `message` is
    printed; where it is empty, nothing is.

    A second SIGTERM to one of several ranks is no impatience if it comes at once: Slurm sends it to every process, and torchrun
    passes its own on to its ranks.
    """
    received: list[int] = []
    received_at = 0.0

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
        nonlocal received_at
        if received and several and number == signal.SIGTERM and time.monotonic() - received_at < SECONDS_OF_ONE_SIGTERM:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        received_at = time.monotonic()
        ask()
        if message:
            # Straight to the stream: the display may be in the middle of drawing.
            with suppress(OSError, ValueError):  # a stream without a file behind it
                os.write(sys.stderr.fileno(), f"{message}; once more stops at once\n".encode())

    # Only the main thread may install handlers; elsewhere the program around us decides.
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
