"""`proxrl.tune`: starts or continues a study, and runs its trials."""

import contextlib
import functools
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxrl.common.cores import available_cores
from proxrl.common.files import one_line_errors, replacing
from proxrl.common.imports import name_of
from proxrl.common.numbers import format_number
from proxrl.common.signals import stopping_signals
from proxrl.config import CHANGEABLE_ON_RESUME, OFF, Config, flag
from proxrl.config.parse import parse_value, toml_value
from proxrl.config.presets import choose_preset
from proxrl.config.resolve import Resolved, resolve
from proxrl.envs.registry import find_family
from proxrl.errors import ProxRLError, check_at_least
from proxrl.jobs.pool import Lost, Pool, Worker
from proxrl.runs.folder import earlier_config
from proxrl.runs.lookup import find_run
from proxrl.tuning.display import StudyDisplay
from proxrl.tuning.outcome import settings_of, trial_table, write_preset
from proxrl.tuning.space import Space, load_space, starting_point
from proxrl.tuning.study import INDEX, NOTE, REPORTS_PER_RUN, Running, Study, StudyFolder, require_optuna
from proxrl.tuning.worker import Done, Failed, Message, Stopped, TrialProgress, TrialTask, train_trial
from proxrl.world.launcher import launched

if TYPE_CHECKING:
    from optuna.trial import Trial

BUDGET_DIVISOR = 5  # a trial trains for a fifth of the preset's steps
WAIT_SECONDS = 0.25
MEASURE = "mean return of the last 100 episodes"
DIED = "its worker died"
# Settings that the study sets for each trial, so that they can't be fixed.
RESERVED = ("name", "world")


@dataclass(frozen=True)
class Tuned:
    """The state of a study when `tune` returns."""

    path: Path
    preset: Path | None  # a file with the best settings
    trials: int  # how many have ended
    score: float | None  # of the best trial
    settings: dict[str, Any]  # of the best trial: those that were varied
    signal: int | None  # that stopped the study early


def tune(
    env: str | Callable[..., Any],
    *,
    trials: int = 50,
    workers: int = 1,
    total_steps: int | None = None,
    seeds: int = 1,
    seed: int = 1,
    timeout: float | None = None,
    study: str = "tune",
    preset: str | None = None,
    search: str | Path | None = None,
    out: str | Path | None = None,
    studies_dir: str | Path = "studies",
    prune: bool = True,
    clobber: bool = False,
    quiet: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Tuned:
    """Search for better settings than the preset's, or continue the study that the same arguments began.

    Each trial trains `seeds` runs of `total_steps`; its score is the mean of their returns over the last 100 episodes. `settings`
    are fields of `Config` that all trials share. Worker processes import the main script again, so put its code under
    `if __name__ == "__main__":`. A signal that stops the study early lets the running trials save, and is in the result.
    """
    require_optuna()
    for name, value in (("trials", trials), ("workers", workers), ("seeds", seeds)):
        check_at_least(flag(name), value, 1)
    check_tune_arguments(timeout, settings)
    settings = with_origin_path(settings)
    env_name = env if isinstance(env, str) else name_of(env)
    start, family = resolve(env_name, settings, preset, trust=trust), find_family(env_name)
    file = None if search is None else Path(search)
    space = load_space(choose_preset(preset, family.preset), family.preset, file, settings, trust)
    base = base_config(start.config, total_steps, seed)
    with StudyFolder(Path(studies_dir), env_name, study) as folder:
        preset = prepare_folder(folder, preset, clobber)
        out = folder.best if out is None else Path(out)
        optuna_study = Study(folder, definition_of(base, space, seeds), space, base, base.seed, prune)
        with (
            contextlib.closing(StudyDisplay(trials, seeds, len(optuna_study.done()), quiet)) as display,
            stopping_signals("" if quiet else "stopping", notify=display.notice) as received,
        ):
            session = TuningSession(optuna_study, display, TrialPlan(start, settings, preset, seeds, trials, out))
            session.run_trials(workers, received, timeout)
            return session.finish(received)


def check_tune_arguments(timeout: float | None, settings: dict[str, Any]) -> None:
    if timeout is not None and not timeout > 0:
        raise ProxRLError(f"--timeout is {timeout:g}, but must be above 0 seconds")
    if launched().size > 1:
        raise ProxRLError(f"tune starts its own processes: run it once, without {launched().launcher}, and give --workers")
    for name in RESERVED:
        if name in settings:
            raise ProxRLError(f"the study sets {flag(name)} for each trial; leave it out")


def with_origin_path(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with --init-from as a path: trials have a runs folder of their own, where its name is unknown."""
    run = settings.get("init_from")
    return settings if run in (None, OFF) else {**settings, "init_from": str(find_run(run).path.resolve())}


def base_config(preset: Config, total_steps: int | None, seed: int) -> Config:
    """Return the settings of the trials before any of them is varied."""
    budget = max(1, preset.total_steps // BUDGET_DIVISOR)
    if total_steps is not None:
        budget = parse_value("total_steps", total_steps)
    return preset.replace(total_steps=budget, seed=parse_value("seed", seed)).validate()


def prepare_folder(folder: StudyFolder, preset: str | None, clobber: bool) -> str | None:
    """Delete an earlier study if asked to, and return the preset to use: a preset file is copied to the folder.

    Every trial reads the file again, but it may be edited meanwhile, or be one that --clobber deletes.
    """
    content = Path(preset).read_bytes() if preset and preset.endswith(".toml") else None
    if clobber:
        folder.delete()
    if content is None:
        return preset
    with one_line_errors("write", folder.start), replacing(folder.start) as temporary:
        temporary.write_bytes(content)
    return str(folder.start)


def definition_of(base: Config, space: Space, seeds: int) -> dict[str, str]:
    """Return what trials must have in common for their scores to be comparable, as a mapping from flag to value."""
    # Where environments run may differ between trials, and where anything is computed does not affect the score.
    left_out = CHANGEABLE_ON_RESUME - {"total_steps"} | {"vector", "name", "num_minibatches"} | space.keys()
    fixed = {flag(name): toml_value(getattr(base, name)) for name in base.__dataclass_fields__ if name not in left_out}
    if "num_minibatches" not in space and "minibatch_size" not in space:
        fixed["--num-minibatches"] = str(base.num_minibatches)
    return fixed | {"--seeds": str(seeds)} | {f"the search of {name}": str(dimension) for name, dimension in space.items()}


def outside_search_space(space: Space, base: Config) -> str:
    """Return a line about the settings that the first trial can't take from the preset."""
    names = [name for name in space if name not in starting_point(space, base)]
    return f"\nThe first trial samples {', '.join(names)}: the preset's value is outside the search space" if names else ""


@dataclass(frozen=True)
class TrialPlan:
    """What `tune` was asked for."""

    start: Resolved  # the settings from which the study starts
    fixed: dict[str, Any]  # settings that all trials share
    preset: str | None
    seeds: int
    trials: int
    out: Path  # of the best settings

    @property
    def runs(self) -> str:
        return f"{self.seeds} runs" if self.seeds > 1 else "a run"


class TuningSession:
    """Runs the trials of a study, from wherever earlier sessions have left it."""

    def __init__(self, study: Study, display: StudyDisplay, plan: TrialPlan) -> None:
        self.study, self.display, self.plan = study, display, plan

    def run_trials(self, workers: int, received: list[int], timeout: float | None) -> None:
        """Run trials until all are done, a signal is received or the time is over. Unfinished trials are queued again."""
        base, done, trials = self.study.base, len(self.study.done()), self.plan.trials
        self.display.message(
            f"Tuning {base.env} in {trials} trials, each {self.plan.runs} of {base.total_steps:,} steps;"
            f" score: {MEASURE}\nVarying {', '.join(self.study.space)}\nStudy {self.study.folder.path}"
            + outside_search_space(self.study.space, base)
            + (f"\nContinuing after {done} trials; --clobber starts over" if done else "")
        )
        deadline = None if timeout is None else time.monotonic() + timeout
        workers = min(workers, max(1, trials - done))
        # A single worker uses all cores; several workers share them.
        cores = None if workers == 1 else max(1, available_cores() // workers)
        pool: Pool[Running] = Pool(train_trial, lambda number, _: self.study.folder.path / f"worker-{number}.log")
        try:
            while not received and (deadline is None or time.monotonic() < deadline):
                while len(pool.jobs) < workers and len(self.study.done()) + len(pool.jobs) < trials:
                    self.start_trial(pool, cores)
                if not pool.jobs:
                    break
                self.display.update(pool.jobs)
                for worker, running, message in pool.messages(WAIT_SECONDS):
                    self.handle(worker, running, message)
        finally:
            unfinished = pool.jobs
            pool.close()
            for running in unfinished:
                self.study.queue_again(running.trial.number)

    def start_trial(self, pool: Pool[Running], cores: int | None) -> None:
        trial, settings = self.study.begin()
        index, earlier = trial.user_attrs[INDEX], functools.partial(earlier_config, self.study.folder.runs)
        # The preset is trusted, since it was checked when the study started, and may be a copy.
        changes = {**self.plan.fixed, **settings, "total_steps": self.study.base.total_steps, "name": f"trial-{index}"}
        try:
            configs = [
                resolve(self.plan.start.config.env, {**changes, "seed": seed}, self.plan.preset, earlier, trust=True).config
                for seed in range(self.study.base.seed, self.study.base.seed + self.plan.seeds)
            ]
        except ProxRLError as error:  # these settings are not valid together
            self.give_up(trial, index, f"invalid settings: {error}")
            return
        pool.submit(Running(trial, index), TrialTask(self.study.folder.runs, tuple(configs), cores))

    def handle(self, worker: Worker[Running], running: Running, message: Message) -> None:
        """Act on a message from a worker."""
        trial, index = running.trial, running.index
        if isinstance(message, TrialProgress):
            running.reports, running.value = message.report, message.value
            with contextlib.suppress(OSError):  # the worker has died meanwhile
                worker.pipe.send(self.study.report(trial, message.report, message.value))
            return
        worker.job = None
        if isinstance(message, Done):
            best = max((other.values[0] for other in self.study.ranked()), default=None)
            self.study.complete(trial, message.score)
            if best is None or message.score > best:
                self.write_best()
            self.print_outcome(index, f"score {format_number(message.score)}")
        elif isinstance(message, Stopped) and message.pruned:
            percent = 100 * running.reports // (self.plan.seeds * REPORTS_PER_RUN)
            self.give_up(trial, index, f"pruned at {percent}% with return {format_number(running.value)}")
        elif isinstance(message, Stopped):
            self.study.queue_again(trial.number)
        elif isinstance(message, Failed) and message.diverged:
            self.give_up(trial, index, "diverged")
        elif isinstance(message, Failed):
            self.fail(running, message.reason)
        elif isinstance(message, Lost):
            self.retry_once(running, message.reason)

    def fail(self, running: Running, reason: str) -> None:
        """Mark a trial as failed. Raises a ProxRLError if no trial has worked yet.

        In that case the cause is the environment or the settings that all trials share, and every other trial would fail too.
        """
        if not any(trial.state.name in ("COMPLETE", "PRUNED") for trial in self.study.done()):
            self.study.queue_again(running.trial.number)
            raise ProxRLError(f"trial {running.index} failed: {reason}")
        self.give_up(running.trial, running.index, f"failed: {reason}", failed=True)

    def retry_once(self, running: Running, reason: str) -> None:
        """Queue a trial again whose worker died. If its worker dies a second time, the trial is the likely cause, and fails."""
        outcome = f"{DIED} ({reason}; its output is in {self.study.folder.path}/worker-*.log)"
        if running.trial.user_attrs.get(NOTE) == DIED:
            self.fail(running, outcome)
            return
        running.trial.set_user_attr(NOTE, DIED)
        self.study.queue_again(running.trial.number)
        self.display.message(f"trial {running.index}  {outcome}; retrying it once")

    def give_up(self, trial: "Trial", index: int, outcome: str, failed: bool = False) -> None:
        self.study.give_up(trial, outcome, failed)
        self.print_outcome(index, outcome)

    def print_outcome(self, index: int, outcome: str) -> None:
        ranked = self.study.ranked()
        best = f"best {format_number(ranked[0].values[0])} (trial {ranked[0].user_attrs[INDEX]})" if ranked else ""
        self.display.trial(index, outcome, len(self.study.done()), best)

    def write_best(self) -> None:
        measure = f"{MEASURE}, at the end of {self.plan.runs} of {self.study.base.total_steps:,} steps"
        write_preset(self.plan.out, self.study, self.plan.start, self.plan.fixed, measure)

    def finish(self, received: list[int]) -> Tuned:
        """Write the best settings, print the table of the best trials, and return the state of the study."""
        self.display.close()
        ranked, done, trials, out = self.study.ranked(), len(self.study.done()), self.plan.trials, self.plan.out
        if ranked:
            self.write_best()
            self.display.message(f"\n{trial_table(self.study)}\n")
        if done < trials:
            self.display.message(f"Stopped after {done} of {trials} trials; the same command resumes.")
        if ranked:
            env, preset = shlex.quote(self.plan.start.config.env), shlex.quote(str(out))
            self.display.message(f"Wrote {out}; next: proxrl train {env} --preset {preset}")
        elif done >= trials:
            raise ProxRLError(f"none of {done} trials finished; their runs are in {self.study.folder.path}")
        return Tuned(
            path=self.study.folder.path,
            preset=out if ranked else None,
            trials=done,
            score=ranked[0].values[0] if ranked else None,
            settings=settings_of(self.study, ranked[0]) if ranked else {},
            signal=received[0] if received and done < trials else None,
        )
