"""A worker process: it trains the trials that the study's process sends, and tells it how they go."""

import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from proxrl.callback import Callback
from proxrl.config import Config
from proxrl.errors import DivergedError, ProxRLError, one_line
from proxrl.tuning.study import PARTS

if TYPE_CHECKING:
    from proxrl.session import Session

STOP_SECONDS = 20.0  # to end an iteration and save


@dataclass(frozen=True)
class Task:
    runs_dir: Path
    configs: tuple[Config, ...]  # one for each seed


@dataclass(frozen=True)
class Report:
    """Training has come so far; the answer is whether to give it up."""

    part: int
    value: float


@dataclass(frozen=True)
class Done:
    score: float  # the mean over the seeds of what `proxrl train` reports at the end


@dataclass(frozen=True)
class Stopped:
    """As it was told to, by the study or by a signal."""

    pruned: bool


@dataclass(frozen=True)
class Failed:
    reason: str
    diverged: bool


@dataclass(frozen=True)
class Lost:
    """What the worker can't say itself: it has died."""

    how: str


Message: TypeAlias = Report | Done | Stopped | Failed | Lost


class Reporter(Callback):
    """Inside training: ask the study from time to time whether to go on."""

    def __init__(self, study: Connection, stop: threading.Event, seeds_before: int) -> None:
        self._study, self._stop, self._first = study, stop, seeds_before * PARTS
        self._part = 0
        self.pruned = False

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        if self._stop.is_set():
            session.stop_requested = True
            return
        part, value = PARTS * session.step // session.parts.config.planned_steps, session.mean_return
        # At the end there is nothing left to save.
        if self._part < part < PARTS and value is not None:
            self._part = part
            try:
                self._study.send(Report(self._first + part, value))
                self.pruned = session.stop_requested = self._study.recv()
            except (EOFError, OSError):  # the study is closing: save, and end
                session.stop_requested = True


def work(study: Connection, life: Connection, threads: int | None, log: Path) -> None:
    """The life of a worker: until the study's process hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all of a terminal's processes; the study's decides
        signal.signal(number, signal.SIG_IGN)
    stop = threading.Event()
    threading.Thread(target=leave_with_study, args=(life, stop), daemon=True).start()
    # What environments print would tear the study's display apart.
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    import torch

    if threads is not None:
        torch.set_num_threads(threads)  # before the rest is imported, which takes this number as the most there is
    try:
        while not stop.is_set():
            task: Task = pickle.loads(study.recv_bytes())
            study.send(train_task(task, study, stop, threads))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def leave_with_study(life: Connection, stop: threading.Event) -> None:
    """A word asks for an orderly end; silence means that the study's process is gone, and nobody will read the result."""
    try:
        life.recv()
    except (EOFError, OSError):
        os._exit(1)
    stop.set()
    time.sleep(STOP_SECONDS)
    os._exit(1)


def train_task(task: Task, study: Connection, stop: threading.Event, threads: int | None) -> Message:
    from proxrl.launch import run

    scores = []
    for number, config in enumerate(task.configs):
        if threads is not None and config.vector == "workers" and config.num_workers is None:
            config = config.replace(num_workers=threads)
        reporter = Reporter(study, stop, number)
        try:
            result = run(config.env, config, task.runs_dir, False, True, False, False, [reporter])
        except ProxRLError as error:
            return Failed(str(error), isinstance(error, DivergedError))
        except Exception as error:
            return Failed(one_line(error), False)
        if not result.finished:
            return Stopped(reporter.pruned)
        if result.mean_return is None:
            return Failed(f"no episode has finished in {result.step:,} steps; give more --total-steps", False)
        scores.append(result.mean_return)
    return Done(sum(scores) / len(scores))
