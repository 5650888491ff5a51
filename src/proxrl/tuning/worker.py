"""What a worker process of a study does: trains the trials that it is sent, and reports how they go."""

import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from proxrl.callback import Callback
from proxrl.config import Config
from proxrl.errors import DivergedError, describe
from proxrl.jobs.pool import Lost
from proxrl.tuning.study import REPORTS_PER_RUN

if TYPE_CHECKING:
    from proxrl.session import Session


@dataclass(frozen=True)
class TrialTask:
    """The runs of one trial."""

    runs_dir: Path
    configs: tuple[Config, ...]  # one for each seed
    cores: int | None  # that each run uses at most; None for all


@dataclass(frozen=True)
class TrialProgress:
    """Sent during training. The reply says whether to prune the trial."""

    report: int  # counted over all runs of the trial
    value: float


@dataclass(frozen=True)
class Done:
    """Sent when all runs of a trial are finished."""

    score: float  # the mean over the seeds of the return that `proxrl train` reports at the end


@dataclass(frozen=True)
class Stopped:
    """Sent when training was stopped early: by pruning, or because the study ends."""

    pruned: bool


@dataclass(frozen=True)
class Failed:
    """Sent when training raised an error."""

    reason: str
    diverged: bool


Message: TypeAlias = TrialProgress | Done | Stopped | Failed | Lost


class Reporter(Callback):
    """Reports the mean return of a run to the study, and stops the run if the study prunes the trial or ends."""

    def __init__(self, study: Connection, stop: threading.Event, runs_before: int) -> None:
        self._study, self._stop, self._reports_before = study, stop, runs_before * REPORTS_PER_RUN
        self._last_report = 0
        self.pruned = False

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        if self._stop.is_set():
            session.stop_requested = True
            return
        report, value = REPORTS_PER_RUN * session.step // session.config.planned_steps, session.mean_return
        # A report at the end of the run could no longer save any steps.
        if self._last_report < report < REPORTS_PER_RUN and value is not None:
            self._last_report = report
            try:
                self._study.send(TrialProgress(self._reports_before + report, value))
                self.pruned = session.stop_requested = self._study.recv()
            except (EOFError, OSError):  # the study is closing: save and end
                session.stop_requested = True


def train_trial(task: TrialTask, study: Connection, stop: threading.Event) -> Message:
    """Train the runs of a trial one after the other, and return how it ended."""
    from proxrl.launch import RunOptions, run

    scores = []
    for number, config in enumerate(task.configs):
        reporter = Reporter(study, stop, number)
        try:
            options = RunOptions(task.runs_dir, quiet=True, tensorboard=False, callbacks=[reporter], cores=task.cores)
            result = run(config.env, config, options)
        except Exception as error:
            return Failed(describe(error), isinstance(error, DivergedError))
        if not result.finished:
            return Stopped(reporter.pruned)
        if result.mean_return is None:
            return Failed(f"no episode has finished in {result.step:,} steps; give more --total-steps", False)
        scores.append(result.mean_return)
    return Done(sum(scores) / len(scores))
