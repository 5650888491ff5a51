"""What a worker process does: trains one run, and reports its progress."""

import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from proxrl.callback import Callback
from proxrl.config import Config
from proxrl.errors import describe
from proxrl.jobs.pool import Lost

if TYPE_CHECKING:
    from proxrl.session import Session
    from proxrl.types import Rollout

REPORT_SECONDS = 0.1


@dataclass(frozen=True)
class RunTask:
    """One run, and how it is written."""

    config: Config
    runs_dir: Path
    clobber: bool
    tensorboard: bool
    wandb: bool
    cores: int | None  # that it uses at most; None for all


@dataclass(frozen=True)
class RunStarted:
    """Sent when the first rollout was collected in this session."""

    cores: int  # that the run keeps busy


@dataclass(frozen=True)
class RunProgress:
    """Sent during training."""

    step: int
    mean_return: float | None
    success_rate: float | None
    steps_per_second: float


@dataclass(frozen=True)
class RunEnded:
    """Sent when a run is finished, or was stopped and saved."""

    step: int
    finished: bool


@dataclass(frozen=True)
class RunFailed:
    """Sent when training raised an error."""

    reason: str
    traceback: str


RunMessage: TypeAlias = RunStarted | RunProgress | RunEnded | RunFailed | Lost


class RunReporter(Callback):
    """Reports the progress of a run to the process that started it, which may ask it to stop."""

    def __init__(self, pipe: Connection, stop: threading.Event) -> None:
        self._pipe, self._stop = pipe, stop
        self._started, self._reported_at = False, 0.0

    def on_rollout(self, session: "Session", rollout: "Rollout") -> None:
        if not self._started:
            self._started = True
            self._send(session, RunStarted(cores_of(session)))

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        if self._stop.is_set():
            session.request_stop()
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            scores = session.mean_return, session.success_rate
            self._send(session, RunProgress(session.step, *scores, metrics["charts/SPS"]))

    def _send(self, session: "Session", message: RunMessage) -> None:
        try:
            self._pipe.send(message)
        except OSError:  # nobody is left to report to: save and end
            session.request_stop()


def cores_of(session: "Session") -> int:
    """Return how many cores a run keeps busy: those of its network or those of its environments, whichever are more."""
    import torch

    from proxrl.envs.registry import find_family

    config, cores = session.config, session.world.cores
    if torch.device(config.device).type != "cpu":
        return cores  # runs on the same GPU would slow each other down
    if config.vector == "workers":
        environments = min(config.num_workers or cores, config.num_envs)
    elif config.vector == "envpool" or (config.vector == "native" and find_family(config.env).name == "atari"):
        environments = min(cores, config.num_envs)  # the threads of a C++ pool
    else:
        environments = 1
    return max(torch.get_num_threads(), environments)


def train_run(task: RunTask, pipe: Connection, stop: threading.Event) -> RunMessage:
    """Train one run, and return how it ended. Its display goes to the log of this process."""
    from proxrl.launch import RunOptions, run

    options = RunOptions(
        task.runs_dir,
        clobber=task.clobber,
        tensorboard=task.tensorboard,
        wandb=task.wandb,
        callbacks=[RunReporter(pipe, stop)],
        cores=task.cores,
    )
    try:
        result = run(task.config.env, task.config, options)
    except Exception as error:
        traceback.print_exc()
        return RunFailed(describe(error), traceback.format_exc())
    return RunEnded(result.step, result.finished)
