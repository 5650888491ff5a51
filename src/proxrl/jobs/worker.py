"""A worker process: carries out the tasks that it is sent, saves when it is asked to stop, and ends with its parent process."""

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

# Carries out a task and returns the last message about it. It may send others through the pipe before, and returns early if the
# event is set.
CarryOut: TypeAlias = Callable[[Any, Connection, threading.Event], Any]


def work(carry_out: CarryOut, pipe: Connection, control: Connection, log: Path, stop_seconds: float | None) -> None:
    """Carry out tasks until the parent process closes the pipe or asks to stop."""
    # A terminal sends these to all its processes; the parent process decides when its workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stop = threading.Event()
    threading.Thread(target=end_with_parent, args=(control, stop, stop_seconds), daemon=True).start()
    # The output of environments goes to a log, because it would break up the parent's display.
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while not stop.is_set():
            task = pickle.loads(pipe.recv_bytes())
            pipe.send(carry_out(task, pipe, stop))


def end_with_parent(control: Connection, stop: threading.Event, stop_seconds: float | None) -> None:
    """Wait for the parent process to end, then end this process.

    A message asks the worker to save and end, which may take `stop_seconds`, or any time if that is None. A closed pipe means
    that the parent is gone, so nobody will read the result.
    """
    try:
        control.recv()
        stop.set()
        if stop_seconds is None:
            control.recv()
    except (EOFError, OSError):
        os._exit(1)
    time.sleep(stop_seconds or 0.0)
    os._exit(1)
