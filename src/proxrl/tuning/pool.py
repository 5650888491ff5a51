"""The worker processes of a study, from the side of the process that has it."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from proxrl.envs.workers import signals_ignored
from proxrl.tuning.worker import STOP_SECONDS, Lost, Message, Task, work

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass
class Running:
    """A trial in the hands of a worker."""

    trial: "Trial"
    index: int
    part: int = 0
    value: float | None = None


@dataclass
class Worker:
    process: Any  # each start method has a process class of its own
    pipe: Connection
    life: Connection
    running: Running | None = None


class Pool:
    """Workers are started as there is work, kept for the next trial, and replaced when they die."""

    def __init__(self, size: int, logs: Path) -> None:
        self._size, self._logs = size, logs
        # Alone, a worker uses what measured best; several share the cores.
        self._threads = None if size == 1 else max(1, (os.cpu_count() or 1) // size)
        self._workers: list[Worker] = []

    @property
    def running(self) -> list[Running]:
        return [worker.running for worker in self._workers if worker.running is not None]

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._size

    def give(self, running: Running, task: Task) -> None:
        idle = [worker for worker in self._workers if worker.running is None]
        worker = idle[0] if idle else self._start()
        worker.running = running
        with contextlib.suppress(OSError):  # it has died meanwhile, which `messages` will find
            worker.pipe.send_bytes(cloudpickle.dumps(task))

    def messages(self, seconds: float) -> Iterator[tuple[Worker, Running, Message]]:
        """What the workers have to say, within so many seconds."""
        busy = {worker.pipe: worker for worker in self._workers if worker.running is not None}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]  # type: ignore[index]  # wait gives back what it was given
            running = worker.running
            assert running is not None
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                message = Lost(self._bury(worker))
            yield worker, running, message

    def close(self) -> None:
        """Ask all to save and end, and end those that do not; an interruption of this ends all at once."""
        try:
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.life.send(None)
                worker.pipe.close()
            deadline = time.monotonic() + STOP_SECONDS
            for worker in self._workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
            self._workers.clear()

    def _start(self) -> Worker:
        # 'spawn', as for the workers of environments. Not as a daemon, which could not have such workers of its own.
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        their_life, life = context.Pipe(duplex=False)
        log = self._logs / f"worker-{len(self._workers)}.log"
        process = context.Process(target=work, args=(theirs, their_life, self._threads, log), name=log.stem)
        with signals_ignored():
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        their_life.close()
        worker = Worker(process, pipe, life)
        self._workers.append(worker)
        return worker

    def _bury(self, worker: Worker) -> str:
        worker.process.join(1.0)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.life.close()
        self._workers.remove(worker)
        code = worker.process.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
