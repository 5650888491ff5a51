"""Train several runs, each in a process of its own."""

import contextlib
import dataclasses
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from proxrl.common.cores import available_cores
from proxrl.common.files import one_line_errors
from proxrl.common.signals import stopping_signals
from proxrl.errors import check_at_least
from proxrl.jobs.pool import Lost, Pool, Worker
from proxrl.log.run_lines import RunLine, RunLines, clock
from proxrl.many_runs.outcome import Outcome, closing, failures, opening, outcome_line, scores_of
from proxrl.many_runs.plan import Plan, PlannedRun
from proxrl.many_runs.room import Room
from proxrl.many_runs.worker import RunEnded, RunFailed, RunMessage, RunProgress, RunStarted, RunTask, train_run

WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class ManyOptions:
    """How several runs are carried out and written."""

    runs_dir: Path
    jobs: int | None = None  # runs at a time; None: as many as the cores carry
    clobber: bool = False
    quiet: bool = False
    tensorboard: bool = True
    wandb: bool = False


@dataclass
class Job:
    """A run that a worker is training."""

    run: PlannedRun
    line: RunLine
    began: float = field(default_factory=time.monotonic)


def train_many(plan: Plan, options: ManyOptions) -> int | None:
    """Train all runs of a plan that are not finished; return the signal that stopped them, if one did.

    A run that fails does not end the others; at the end, a ProxRLError names those that failed.
    """
    check_at_least("--jobs", options.jobs, 1)
    with (
        stopping_signals("") as received,
        contextlib.closing(RunLines(len(plan.runs), options.quiet)) as display,
    ):
        training = ManyTraining(plan, options, display)
        training.train(received)
        display.close()
        outcomes = training.outcomes()
        display.message(closing(outcomes, options.clobber))
    if received and any(outcome.state in ("stopped", "waiting") for outcome in outcomes):
        return received[0]
    error = failures(outcomes)
    if error is not None:
        raise error
    return None


class ManyTraining:
    """Trains the runs of a plan, as many at a time as there is room for."""

    def __init__(self, plan: Plan, options: ManyOptions, display: RunLines) -> None:
        self._plan, self._options, self._display = plan, options, display
        self._waiting = deque(run for run in plan.runs if not run.finished)
        self._ended: dict[Path, Outcome] = {}
        self._room = Room(options.jobs, available_cores())
        self._cores = self._room.cores_per_run(max(1, len(self._waiting)))
        # A process for each run: what one leaves behind in its process can't change the results of the next. A run may take any
        # time to save, as it does when it is trained alone.
        self._pool: Pool[Job] = Pool(train_run, lambda _, job: job.run.log, stop_seconds=None)
        self._stopping = False

    def train(self, received: list[int]) -> None:
        """Train until all runs have ended, or until a signal is received and those that are running have been saved."""
        options = self._options
        self._display.message(opening(self._plan.runs, options.runs_dir, options.jobs, available_cores()))
        try:
            while self._pool.jobs or (self._waiting and not received):
                if received and not self._stopping:
                    self._stop()
                while not received and self._waiting and self._has_room():
                    self._start(self._waiting.popleft())
                waiting = sum(run.config.planned_steps - run.step for run in self._waiting)
                lines = [job.line for job in self._pool.jobs]
                self._display.update(lines, len(self._plan.runs) - len(lines) - len(self._waiting), waiting)
                for worker, job, message in self._pool.messages(WAIT_SECONDS):
                    self._handle(worker, job, message)
        except KeyboardInterrupt:  # the second signal
            self._pool.kill()
            raise
        finally:
            self._pool.close()

    def outcomes(self) -> list[Outcome]:
        """Return how each run of the plan ended, in the order of the plan."""
        return [self._ended.get(run.folder.path) or self._unchanged(run) for run in self._plan.runs]

    def _unchanged(self, run: PlannedRun) -> Outcome:
        if not run.finished:
            return Outcome(run, "waiting", run.step)
        return Outcome(run, "finished", run.step, *scores_of(run))

    def _has_room(self) -> bool:
        return self._room.has_room(self._waiting[0].config.name, [job.run.config.name for job in self._pool.jobs])

    def _start(self, run: PlannedRun) -> None:
        options = self._options
        with one_line_errors("write", run.log):
            run.log.parent.mkdir(parents=True, exist_ok=True)
            if options.clobber:
                run.log.unlink(missing_ok=True)
        task = RunTask(run.config, options.runs_dir, options.clobber, options.tensorboard, options.wandb, self._cores)
        self._pool.submit(Job(run, RunLine(run.label, run.config.planned_steps, run.step)), task)

    def _stop(self) -> None:
        self._stopping = True
        self._display.message("stopping after the current iteration of each run; press Ctrl-C again to stop at once")
        self._pool.request_stop()

    def _handle(self, worker: Worker[Job], job: Job, message: RunMessage) -> None:
        """Act on a message from a worker."""
        if isinstance(message, RunStarted):
            self._room.report(job.run.config.name, message.cores)
            return
        if isinstance(message, RunProgress):
            job.line = dataclasses.replace(job.line, **dataclasses.asdict(message))
            return
        outcome = self._outcome(job.run, message)
        self._ended[job.run.folder.path] = outcome
        self._display.message(outcome_line(outcome, clock(time.monotonic() - job.began)))
        if not isinstance(message, Lost):
            worker.job = None
            self._pool.retire(worker)

    def _outcome(self, run: PlannedRun, message: RunEnded | RunFailed | Lost) -> Outcome:
        if isinstance(message, RunEnded):
            return Outcome(run, "finished" if message.finished else "stopped", message.step, *scores_of(run))
        if isinstance(message, RunFailed):
            return Outcome(run, "failed", run.step, reason=message.reason, traceback=message.traceback)
        if self._stopping and message.by_itself:  # it was asked to stop before it had begun
            return Outcome(run, "waiting", run.step)
        return Outcome(run, "failed", run.step, reason=f"its process died ({message.reason}); its output is in {run.log}")
