"""Tasks for worker processes that need no training, in a module that every process can import."""

import os
import time
from multiprocessing.connection import Connection
from threading import Event
from typing import Any


def carry_out(task: str, pipe: Connection, stop: Event) -> Any:
    """Carry out a task: a word that says what to do."""
    pipe.send(("begins", os.getpid()))
    print(f"task {task}", flush=True)
    if task == "die":
        os._exit(9)
    if task == "wait":
        stop.wait()
        return "stopped"
    if task == "hang":
        time.sleep(600)
    return "done"


def hang_instead(task: Any, pipe: Connection, stop: Event) -> Any:  # noqa: ARG001 - the signature of `CarryOut`
    """Do not end, whatever the task and even if asked to stop."""
    time.sleep(600)
