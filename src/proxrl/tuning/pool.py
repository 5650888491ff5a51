"""The worker processes of a study, as the study's process sees them."""

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
from proxrl.tuning.worker import STOP_SECONDS, Lost, Message, TrialTask, work

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass
class Running:
    """A trial that a worker is training."""

    trial: "Trial"
    index: int
    reports: int = 0
    value: float | None = None  # of the last report


@dataclass
class Worker:
    """A worker process, and the trial that it is training, if any."""

    process: Any  # each start method has a process class of its own
    pipe: Connection  # tasks and messages
    control: Connection  # asks the worker to end
    running: Running | None = None


class Pool:
    """Starts workers when there is work, reuses them for later trials, and replaces those that die."""

    def __init__(self, size: int, logs: Path) -> None:
        self._size, self._logs = size, logs
        # A single worker chooses its number of threads itself; several workers share the cores.
        self._threads = None if size == 1 else max(1, (os.cpu_count() or 1) // size)
        self._workers: list[Worker] = []

    @property
    def running(self) -> list[Running]:
        return [worker.running for worker in self._workers if worker.running is not None]

    @property
    def has_room(self) -> bool:
        return len(self.running) < self._size

    def submit(self, running: Running, task: TrialTask) -> None:
        """Send a trial to an idle worker, or to a new one."""
        idle = [worker for worker in self._workers if worker.running is None]
        worker = idle[0] if idle else self._start()
        worker.running = running
        with contextlib.suppress(OSError):  # the worker has died, which `messages` will find
            worker.pipe.send_bytes(cloudpickle.dumps(task))

    def messages(self, seconds: float) -> Iterator[tuple[Worker, Running, Message]]:
        """Yield the messages of the workers, waiting at most this long for the first."""
        busy = {worker.pipe: worker for worker in self._workers if worker.running is not None}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]  # type: ignore[index]  # wait returns the objects that it was given
            running = worker.running
            assert running is not None
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                message = Lost(self._remove(worker))
            yield worker, running, message

    def close(self) -> None:
        """Ask all workers to save and end, and kill those that do not end in time. If interrupted, kill all at once."""
        try:
            for worker in self._workers:
                with contextlib.suppress(OSError):
                    worker.control.send(None)
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
        # 'spawn', as for environment workers. Not as a daemon: daemons can't start environment workers of their own.
        context = multiprocessing.get_context("spawn")
        pipe, worker_pipe = context.Pipe()
        worker_control, control = context.Pipe(duplex=False)
        log = self._logs / f"worker-{len(self._workers)}.log"
        process = context.Process(target=work, args=(worker_pipe, worker_control, self._threads, log), name=log.stem)
        with signals_ignored():
            process.start()
        worker_pipe.close()  # so that the pipe is closed when the worker ends
        worker_control.close()
        worker = Worker(process, pipe, control)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: Worker) -> str:
        """Remove a worker that has died, and return how it died."""
        worker.process.join(1.0)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.control.close()
        self._workers.remove(worker)
        code = worker.process.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
