"""Ctrl-C and SIGTERM as a request to stop, so that everything can be saved first."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Repeated SIGTERMs within this time count as one.
REPEATED_SIGTERM_SECONDS = 5.0


def is_interactive() -> bool:
    """Return whether a person types the statements that this process runs: at a Python prompt, in IPython or in a notebook."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)


def write_to_stderr(text: str) -> None:
    """Print a line at once, past all buffers and locks: the signal may have interrupted another line."""
    with suppress(OSError, ValueError, AttributeError):  # stderr may be None, or not a file
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


@contextmanager
def stopping_signals(
    message: str,
    request_stop: Callable[[], None] = lambda: None,
    several_ranks: bool = False,
    notify: Callable[[str], None] = write_to_stderr,
) -> Iterator[list[int]]:
    """On the first Ctrl-C or SIGTERM, call `request_stop`, print `message` unless it is empty, and append the signal's number to
    the list that this context yields. A second signal raises `KeyboardInterrupt`.

    `notify` prints the message. It is called in the middle of whatever the signal interrupts, perhaps a drawing of the display,
    so it must not wait for anything.

    With several ranks, a second SIGTERM within a few seconds is ignored: Slurm sends it to every process, and torchrun forwards
    the one that it received to its ranks.
    """
    received: list[int] = []
    received_at = 0.0

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
        nonlocal received_at
        if received and several_ranks and number == signal.SIGTERM and time.monotonic() - received_at < REPEATED_SIGTERM_SECONDS:
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)
        received_at = time.monotonic()
        request_stop()
        if message:
            notify(f"{message}; press Ctrl-C again to stop at once")

    # Only the main thread may install handlers; in other threads that is left to the surrounding program.
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
