"""Worker processes, for environments whose own step is slow: each runs a share of them and answers through shared memory."""

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

from proxrl.common.tree import tree_map
from proxrl.envs.api import Autoreset
from proxrl.envs.buffers import SharedArrays
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError, describe, one_line
from proxrl.types import Episode, Step, Tree

START_SECONDS = 30.0  # also for the imports before a worker's first answer
CLOSE_SECONDS = 2.0
# What travels through a pipe: one byte to wake a worker, an empty answer when nothing ended; anything longer is pickled.
STEP = b"s"
DONE = b""
LEFT_TO_PARENT = (signal.SIGINT, signal.SIGTERM)
CAN_ASK = hasattr(signal, "SIGUSR1")  # not on Windows


@dataclass
class _Failure:
    """What went wrong in a worker."""

    line: str
    traceback: str


@dataclass
class _Worker:
    label: str
    process: Any  # each start method has a process class of its own
    pipe: Connection
    stack: Connection  # where it writes what it is doing when asked to
    part: slice  # of the pool's environments


class WorkerEnvs:
    """N environments over several processes, equal bit for bit to one `InProcessEnvs` over the same makers."""

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
        # Before multiprocessing's own exit handler, which asks by SIGTERM, and that workers leave to their parent.
        atexit.register(self.close)
        count = max(1, min(num_workers or os.cpu_count() or 1, self.num_envs))
        edges = [self.num_envs * k // count for k in range(count + 1)]
        try:
            for number in range(count):
                self._start(number, slice(edges[number], edges[number + 1]), makers, first_env)
            self.observation_space, self.action_space = self._answers(START_SECONDS)[0]
            self._shared = SharedArrays(self.observation_space, self.action_space, self.num_envs)
            for worker in self._workers:
                self._send(worker, pickle.dumps(self._shared.name))
            self._answers(START_SECONDS)
            # Everyone has it open, so its name can go: nothing stays behind even if this process is killed.
            self._shared.unlink()
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        shared = self._open()
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        for worker in self._workers:
            self._send(worker, pickle.dumps((seed, self.episode_counts[worker.part].tolist())))
        self._answers(self._timeout)
        self.episode_counts += 1
        return shared.buffers.obs

    def step(self, action: Tree) -> Step:
        shared = self._open()
        tree_map(lambda array, value: array.__setitem__(slice(None), value), shared.actions, action)
        for worker in self._workers:
            self._send(worker, STEP)
        episodes: list[Episode] = []
        for worker, finished in zip(self._workers, self._answers(self._timeout), strict=True):
            episodes += [episode._replace(env=episode.env + worker.part.start) for episode in finished]
        buffers, final_obs = shared.buffers, None
        ended = np.flatnonzero(buffers.terminated | buffers.truncated)
        if len(ended):
            self.episode_counts[ended] += 1
            final_obs = tree_map(lambda array: array[ended], buffers.final_obs)
        return Step(buffers.obs, buffers.reward, buffers.terminated, buffers.truncated, self._valid, final_obs, episodes)

    def close(self) -> None:
        for worker in self._workers:
            worker.stack.close()
            worker.pipe.close()  # a worker that waits for work leaves when its pipe ends
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

    def _start(self, number: int, part: slice, makers: Sequence[Callable[[], gymnasium.Env]], first_env: int) -> None:
        try:
            pickled = cloudpickle.dumps(list(makers[part]))
        except Exception as error:
            raise ProxRLError(f"the environment can't be sent to a worker ({one_line(error)}); use --vector inprocess") from error
        # 'spawn' on every system: forking a process that runs torch's threads can deadlock.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        stack, written = context.Pipe(duplex=False)
        first, last = first_env + part.start, first_env + part.stop - 1
        arguments = (theirs, written, pickled, first, part, len(makers))
        process = context.Process(target=_work, args=arguments, name=f"proxrl-worker-{number}", daemon=True)
        with signals_ignored():
            process.start()
        theirs.close()  # so that the pipe ends when the worker does
        written.close()
        label = f"worker {number} (environment{f's {first}-{last}' if last > first else f' {first}'})"
        self._workers.append(_Worker(label, process, ours, stack, part))

    def _open(self) -> SharedArrays:
        if self._shared is None:
            raise ProxRLError("these worker processes are closed; make new ones")
        return self._shared

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            raise self._lost(worker) from None

    def _answers(self, limit: float) -> list[Any]:
        """One answer of every worker, or the reason why there is none within `limit` seconds."""
        deadline = time.monotonic() + limit
        answers = []
        for worker in self._workers:
            try:
                if not worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                    hung = ProxRLError(
                        f"{worker.label} gave no answer for {limit:g} seconds: the environment hangs or is too slow"
                    )
                    hung.add_note(f"in {worker.label}:\n{_stack_of(worker)}")
                    worker.process.kill()
                    self.close()
                    raise hung
                message = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                raise self._lost(worker) from None
            answer = () if message == DONE else pickle.loads(message)
            if isinstance(answer, _Failure):
                self.close()
                failed = ProxRLError(answer.line)
                failed.add_note(f"in {worker.label}:\n{answer.traceback}")
                raise failed
            answers.append(answer)
        return answers

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
    """Where a worker that does not answer is stuck, by its own word."""
    if not CAN_ASK or worker.process.pid is None:
        return "its stack can't be asked for on this system"
    with contextlib.suppress(OSError):
        os.kill(worker.process.pid, signal.SIGUSR1)
        if worker.stack.poll(CLOSE_SECONDS):
            time.sleep(0.1)  # it writes line by line
            return os.read(worker.stack.fileno(), 65536).decode(errors="replace")
    return "it gave no stack"


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """A process started inside inherits this, even while it still imports: what is sent to a whole group of processes is for the
    parent, who saves and then closes its workers.
    """
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in LEFT_TO_PARENT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(pipe: Connection, stack: Connection, makers: bytes, first_env: int, part: slice, num_envs: int) -> None:
    """The life of a worker: make its environments, then answer until the pipe ends."""
    for number in LEFT_TO_PARENT:
        signal.signal(number, signal.SIG_IGN)
    if CAN_ASK:
        faulthandler.register(signal.SIGUSR1, file=stack.fileno(), all_threads=False)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        envs = InProcessEnvs(cloudpickle.loads(makers), first_env)
        pipe.send_bytes(cloudpickle.dumps((envs.observation_space, envs.action_space)))
        shared = SharedArrays(envs.observation_space, envs.action_space, num_envs, pickle.loads(pipe.recv_bytes()))
        envs.use_buffers(shared.buffers.rows(part))
        actions = tree_map(lambda array: array[part], shared.actions)
        pipe.send_bytes(DONE)
        while True:
            message = pipe.recv_bytes()
            if message == STEP:
                # A copy: an environment may keep its action, and the next one overwrites this memory.
                episodes = envs.step(tree_map(np.copy, actions)).episodes
                pipe.send_bytes(pickle.dumps(episodes) if episodes else DONE)
            else:
                envs.reset(*pickle.loads(message))
                pipe.send_bytes(DONE)
    except (EOFError, ConnectionError):
        return  # the pool was closed, or its process is gone
    except BaseException as error:
        with contextlib.suppress(OSError):  # the pool was closed because another worker failed first
            pipe.send_bytes(pickle.dumps(_Failure(describe(error), traceback.format_exc())))


def _leave_with_parent() -> None:
    """Also when the environment hangs and nobody reads the pipe."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
