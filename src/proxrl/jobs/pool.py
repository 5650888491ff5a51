"""Worker processes, as the process that starts them sees them."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle

from proxrl.envs.workers import signals_ignored
from proxrl.jobs.worker import CarryOut, work

J = TypeVar("J")  # what the parent process knows about a job

CLOSE_SECONDS = 20.0  # to end an iteration and save, when the pool is closed


@dataclass(frozen=True)
class Lost:
    """Created by the pool in place of a message when a worker process has ended without one."""

    reason: str
    by_itself: bool = False  # without an error, as a worker does that is asked to stop before it has begun


@dataclass
class Worker(Generic[J]):
    """A worker process, and the job that it is carrying out, if any."""

    process: Any  # each start method has a process class of its own
    pipe: Connection  # tasks and messages
    control: Connection  # asks the worker to end
    job: J | None = None


class Pool(Generic[J]):
    """Starts workers when there is work, reuses those that are idle, and finds those that have died.

    Args:
        carry_out: The function that workers call for each task, at the top level of a module.
        log_path: Returns the file for the output of a worker, from the number of workers before it and its first job.
        stop_seconds: How long a worker may take to save after it was asked to stop; None for any time.
    """

    def __init__(
        self, carry_out: CarryOut, log_path: Callable[[int, J], Path], stop_seconds: float | None = CLOSE_SECONDS
    ) -> None:
        self._carry_out, self._log_path, self._stop_seconds = carry_out, log_path, stop_seconds
        self._workers: list[Worker[J]] = []
        self._retired: list[tuple[Any, Connection]] = []  # processes that are ending, and their controls

    @property
    def jobs(self) -> list[J]:
        """The jobs that are being carried out."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def submit(self, job: J, task: Any) -> None:
        """Send a task to an idle worker, or to a new one."""
        idle = [worker for worker in self._workers if worker.job is None]
        worker = idle[0] if idle else self._start(job)
        worker.job = job
        with contextlib.suppress(OSError):  # the worker has died, which `messages` will find
            worker.pipe.send_bytes(cloudpickle.dumps(task))

    def messages(self, seconds: float) -> Iterator[tuple[Worker[J], J, Any]]:
        """Yield the messages of the workers, waiting at most this long for the first."""
        busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]  # type: ignore[index]  # wait returns the objects that it was given
            job = worker.job
            assert job is not None
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                message = Lost(self._remove(worker), worker.process.exitcode == 0)
            yield worker, job, message

    def retire(self, worker: Worker[J]) -> None:
        """Let a worker that has finished its job end, so that the next job gets a new process."""
        worker.pipe.close()
        self._workers.remove(worker)
        self._release_ended()
        # Its control stays open until the process has ended: closing it would end the process before it has cleaned up.
        self._retired.append((worker.process, worker.control))

    def request_stop(self) -> None:
        """Ask all workers to save and end."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.control.send(None)

    def close(self) -> None:
        """Ask all workers to save and end, and kill those that do not end in time. If interrupted, kill all at once."""
        try:
            self.request_stop()
            for worker in self._workers:
                worker.pipe.close()
            deadline = time.monotonic() + CLOSE_SECONDS
            for process in self._processes():
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            self.kill()

    def kill(self) -> None:
        """End all workers at once."""
        for process in self._processes():
            process.kill()
            process.join()
        self._workers.clear()
        self._retired.clear()

    def _release_ended(self) -> None:
        """Free the file descriptors of retired processes that have ended: with many jobs they would run out."""
        for process, control in [entry for entry in self._retired if not entry[0].is_alive()]:
            self._retired.remove((process, control))
            process.close()
            control.close()

    def _processes(self) -> list[Any]:
        return [worker.process for worker in self._workers] + [process for process, _ in self._retired]

    def _start(self, job: J) -> Worker[J]:
        # 'spawn', as for environment workers. Not as a daemon: daemons can't start environment workers of their own.
        context = multiprocessing.get_context("spawn")
        pipe, worker_pipe = context.Pipe()
        worker_control, control = context.Pipe(duplex=False)
        log = self._log_path(len(self._workers), job)
        arguments = (self._carry_out, worker_pipe, worker_control, log, self._stop_seconds)
        process = context.Process(target=work, args=arguments, name=log.stem)
        with signals_ignored():
            process.start()
        worker_pipe.close()  # so that the pipe is closed when the worker ends
        worker_control.close()
        worker: Worker[J] = Worker(process, pipe, control)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: Worker[J]) -> str:
        """Remove a worker that has died, and return how it died."""
        worker.process.join(1.0)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.control.close()
        self._workers.remove(worker)
        code = worker.process.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
