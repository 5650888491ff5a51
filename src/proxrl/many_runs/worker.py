"""What a worker process does: trains one run, and reports its progress."""

import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

from proxrl.common.imports import without_garbage_collection
from proxrl.config import Config
from proxrl.errors import describe
from proxrl.jobs.pool import Lost


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
    """Sent before the first rollout."""

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


def train_run(task: RunTask, pipe: Connection, stop: threading.Event) -> RunMessage:
    """Train one run, and return how it ended. Its display goes to the log of this process."""
    # Imported here, because the parent process imports this module too, and does not need torch.
    with without_garbage_collection():
        from proxrl.launch import RunOptions, run
        from proxrl.many_runs.reporter import RunReporter

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
