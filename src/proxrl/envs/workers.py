"""Worker processes, for environments with slow steps: each runs some of them and writes the results to shared memory."""

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from proxrl.common.tree import tree_map
from proxrl.envs.api import Autoreset
from proxrl.envs.buffers import SharedArrays
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError, describe, one_line
from proxrl.types import Episode, Step, Tree

START_SECONDS = 30.0  # includes the imports before a worker's first reply
CLOSE_SECONDS = 2.0
# Messages through the pipes: one byte requests a step, an empty reply says that there is nothing to report, as after a step that
# ended no episode; all others are pickled.
STEP = b"s"
DONE = b""
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the parent process handles them
CAN_DUMP_STACK = hasattr(signal, "SIGUSR1")  # not on Windows


@dataclass
class _Failure:
    """An error in a worker."""

    line: str
    traceback: str


@dataclass
class _Worker:
    label: str
    process: Any  # each start method has its own process class
    pipe: Connection
    stack: Connection  # receives its stack after a SIGUSR1
    envs: slice  # indices of its environments in the pool


class WorkerEnvs:
    """N environments in several processes, with exactly the results of an `InProcessEnvs` with the same makers."""

    autoreset = Autoreset.SAME_STEP

    def __init__(
        self,
        makers: Sequence[Callable[[], gymnasium.Env]],
        first_env: int = 0,
        num_workers: int | None = None,
        timeout: float = 30.0,
        frame_stack: int = 1,
    ) -> None:
        self.frame_stack = frame_stack
        self.num_envs = len(makers)
        self.episode_counts = np.zeros(self.num_envs, np.int64)
        self._timeout = timeout
        self._valid = np.ones(self.num_envs, np.bool_)
        self._workers: list[_Worker] = []
        self._shared: SharedArrays | None = None
        self._info: NDArray[np.float64] | None = None
        # Runs before multiprocessing's exit handler, which sends SIGTERM, a signal that workers ignore.
        atexit.register(self.close)
        count = max(1, min(num_workers or os.cpu_count() or 1, self.num_envs))
        edges = [self.num_envs * k // count for k in range(count + 1)]
        try:
            for number in range(count):
                self._start(number, slice(edges[number], edges[number + 1]), makers, first_env)
            self.observation_space, self.action_space = self._replies(START_SECONDS)[0]
            self._shared = SharedArrays(self.observation_space, self.action_space, self.num_envs)
            for worker in self._workers:
                self._send(worker, pickle.dumps(self._shared.name))
            self._replies(START_SECONDS)
            # All workers have opened it, so the name can be removed: nothing is left behind even if this process is killed.
            self._shared.unlink()
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        shared = self._open()
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        for worker in self._workers:
            self._call(worker, "reset", seed, self.episode_counts[worker.envs].tolist())
        self._replies(self._timeout)
        self.episode_counts += 1
        return shared.buffers.obs

    def step(self, action: Tree) -> Step:
        shared = self._open()
        tree_map(lambda array, value: array.__setitem__(slice(None), value), shared.actions, action)
        for worker in self._workers:
            self._send(worker, STEP)
        episodes: list[Episode] = []
        for worker, reply in zip(self._workers, self._replies(self._timeout), strict=True):
            finished, info = reply or ((), None)
            episodes += [episode._replace(env=episode.env + worker.envs.start) for episode in finished]
            if self._info is not None:
                self._info[worker.envs] = info
        buffers, final_obs = shared.buffers, None
        ended = np.flatnonzero(buffers.terminated | buffers.truncated)
        if len(ended):
            self.episode_counts[ended] += 1
            final_obs = tree_map(lambda array: array[ended], buffers.final_obs)
        flags = buffers.terminated, buffers.truncated
        return Step(buffers.obs, buffers.reward, *flags, self._valid, final_obs, episodes, self._info)

    def record_info(self, keys: Sequence[str]) -> None:
        for worker in self._workers:
            self._call(worker, "record_info", tuple(keys))
        self._replies(self._timeout)
        self._info = np.full((self.num_envs, len(keys)), np.nan) if keys else None

    def info_names(self) -> list[str]:
        for worker in self._workers:
            self._call(worker, "info_names")
        return list(dict.fromkeys(name for names in self._replies(self._timeout) for name in names or ()))

    def probe(self, function: Callable[[gymnasium.Env], Any]) -> Any:
        """Return what `InProcessEnvs.probe` does, in the first worker: a crash or a hang of the environment is reported."""
        worker = self._workers[0]
        self._call(worker, "probe", function)
        return self._replies(self._timeout, [worker])[0]

    def close(self) -> None:
        for worker in self._workers:
            worker.stack.close()
            worker.pipe.close()  # a worker that waits for a message exits when its pipe is closed
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()
        atexit.unregister(self.close)
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _start(self, number: int, envs: slice, makers: Sequence[Callable[[], gymnasium.Env]], first_env: int) -> None:
        try:
            pickled = cloudpickle.dumps(list(makers[envs]))
        except Exception as error:
            raise ProxRLError(
                f"the environment can't be pickled for a worker ({one_line(error)}); use --vector inprocess"
            ) from error
        # 'spawn' on every system, since forking a process with torch's threads can deadlock.
        context = multiprocessing.get_context("spawn")
        pipe, worker_pipe = context.Pipe()
        stack, worker_stack = context.Pipe(duplex=False)
        first, last = first_env + envs.start, first_env + envs.stop - 1
        arguments = (worker_pipe, worker_stack, pickled, first, envs, len(makers))
        process = context.Process(target=_work, args=arguments, name=f"proxrl-worker-{number}", daemon=True)
        with signals_ignored():
            process.start()
        worker_pipe.close()  # so that the pipe ends together with the worker
        worker_stack.close()
        label = f"worker {number} (environment{f's {first}-{last}' if last > first else f' {first}'})"
        self._workers.append(_Worker(label, process, pipe, stack, envs))

    def _open(self) -> SharedArrays:
        if self._shared is None:
            raise ProxRLError("these worker processes have been closed; make new ones")
        return self._shared

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            raise self._lost(worker) from None

    def _call(self, worker: _Worker, method: str, *arguments: Any) -> None:
        """Ask a worker to call a method of its pool; its reply is what the method returns, without observations."""
        self._send(worker, pickle.dumps((method, arguments)))

    def _replies(self, limit: float, workers: "Sequence[_Worker] | None" = None) -> list[Any]:
        """Return the replies of these workers, by default all, or raise a `ProxRLError` if one fails or is silent for `limit`
        seconds.
        """
        deadline = time.monotonic() + limit
        replies = []
        for worker in self._workers if workers is None else workers:
            try:
                if not worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                    hung = ProxRLError(
                        f"{worker.label} did not reply within {limit:g} seconds: the environment hangs or is too slow"
                    )
                    hung.add_note(f"in {worker.label}:\n{_stack_of(worker)}")
                    worker.process.kill()
                    self.close()
                    raise hung
                message = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                raise self._lost(worker) from None
            reply = None if message == DONE else pickle.loads(message)
            if isinstance(reply, _Failure):
                self.close()
                failed = ProxRLError(reply.line)
                failed.add_note(f"in {worker.label}:\n{reply.traceback}")
                raise failed
            replies.append(reply)
        return replies

    def _lost(self, worker: _Worker) -> ProxRLError:
        worker.process.join(CLOSE_SECONDS)
        code = worker.process.exitcode
        starting = self._shared is None
        self.close()
        if starting and code == 1:
            return ProxRLError(
                f"{worker.label} ended while starting: keep the main script's work under \"if __name__ == '__main__':\""
                " or use --vector inprocess"
            )
        reason = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return ProxRLError(f"{worker.label} died ({reason}); if memory ran out, use fewer environments")


def _stack_of(worker: _Worker) -> str:
    """Return the stack of a worker that does not reply, which it writes after a SIGUSR1."""
    if not CAN_DUMP_STACK or worker.process.pid is None:
        return "(its stack is not available on this system)"
    with contextlib.suppress(OSError):
        os.kill(worker.process.pid, signal.SIGUSR1)
        if worker.stack.poll(CLOSE_SECONDS):
            time.sleep(0.1)  # it is written line by line
            return os.read(worker.stack.fileno(), 65536).decode(errors="replace")
    return "(it did not write its stack)"


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Let processes that are started inside ignore Ctrl-C and SIGTERM, even during their imports.

    These signals are sent to the whole process group, and the parent saves the run before it closes its workers.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(pipe: Connection, stack: Connection, makers: bytes, first_env: int, rows: slice, num_envs: int) -> None:
    """Run a worker: make its environments, then reply to messages until the pipe is closed."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if CAN_DUMP_STACK:
        faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=False)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        pool = InProcessEnvs(cloudpickle.loads(makers), first_env)
        pipe.send_bytes(cloudpickle.dumps((pool.observation_space, pool.action_space)))
        shared = SharedArrays(pool.observation_space, pool.action_space, num_envs, pickle.loads(pipe.recv_bytes()))
        pool.use_buffers(shared.buffers.rows(rows))
        actions = tree_map(lambda array: array[rows], shared.actions)
        pipe.send_bytes(DONE)
        while True:
            message = pipe.recv_bytes()
            if message == STEP:
                # A copy, since an environment may store its action, and the next one overwrites this memory.
                step = pool.step(tree_map(np.copy, actions))
                reply = (step.episodes, step.info) if step.episodes or step.info is not None else None
            else:
                method, arguments = pickle.loads(message)
                result = getattr(pool, method)(*arguments)
                reply = None if method == "reset" else result  # observations are in shared memory
            pipe.send_bytes(DONE if reply is None else pickle.dumps(reply))
    except (EOFError, ConnectionError):
        return  # the pool was closed, or its process has ended
    except BaseException as error:
        with contextlib.suppress(OSError):  # the pool was closed because another worker failed first
            pipe.send_bytes(pickle.dumps(_Failure(describe(error), traceback.format_exc())))


def _exit_with_parent() -> None:
    """Exit when the parent process has ended, even if the environment hangs and the pipe is not read."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
