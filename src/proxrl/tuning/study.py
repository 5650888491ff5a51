"""The trials of a study, stored by Optuna in SQLite. Only the process that holds the lock reads and writes them."""

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from proxrl.common.files import acquire_lock, one_line_errors
from proxrl.common.seeding import Purpose, integer_seed
from proxrl.config import Config
from proxrl.errors import ProxRLError, one_line
from proxrl.runs.folder import folder_name
from proxrl.tuning.space import Space, draw, starting_point

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

# Reports of each run, whatever its batch size: Optuna compares trials with equal numbers of reports.
REPORTS_PER_RUN = 20
# No trial is pruned before this report of its first run, nor before this many trials have finished.
PRUNE_FROM, PRUNE_AFTER = REPORTS_PER_RUN // 4, 5
# The number of finished trials from which importances are estimated.
ENOUGH_FOR_IMPORTANCES = 10
# Attributes of a trial: its number, which an interruption does not change, and why it did not finish.
INDEX, NOTE = "index", "note"


@dataclass
class Running:
    """A trial that a worker is training."""

    trial: "Trial"
    index: int
    reports: int = 0
    value: float | None = None  # of the last report


class StudyFolder:
    """The folder `studies/<env>/<study>/`: the paths of its files, and the lock on it."""

    def __init__(self, studies_dir: Path, env: str, name: str) -> None:
        if not name or any(character in name for character in "/\\:") or name.startswith("."):
            raise ProxRLError(f"--study {name!r} can't be a folder name; use letters, digits, '-' and '_'")
        self.name = name
        self.path = studies_dir / folder_name(env) / name
        self.database, self.best, self.runs = self.path / "study.sqlite3", self.path / "best.toml", self.path / "runs"
        self.start = self.path / "start.toml"  # a copy of the preset file that the study began with
        self._trials = self.runs / folder_name(env)
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> "StudyFolder":
        with one_line_errors("use the study's folder", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = acquire_lock(
                self.path / "study.lock",
                f"is already tuning in {self.path}; wait for it, or use another --study (--workers trains several at once)",
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def delete(self) -> None:
        """Delete the study and its runs, and nothing else in the folder."""
        with one_line_errors("delete the study in", self.path):
            # The runs first: if the database went first and the rest failed, a new study would resume runs of the old one.
            for path in self._trials.glob("trial-*"):
                shutil.rmtree(path)
            databases = [self.path / f"{self.database.name}{ending}" for ending in ("", "-journal", "-wal", "-shm")]
            for path in (*databases, *self.path.glob("worker-*.log"), self.best, self.start):
                path.unlink(missing_ok=True)


class Study:
    """An Optuna study whose trials can be interrupted.

    An interrupted trial is queued again under its old index and resumes from its checkpoints, so with one worker a
    study that was killed gives the same result as an uninterrupted one.
    """

    def __init__(
        self, folder: StudyFolder, definition: dict[str, str], space: Space, base: Config, seed: int, prune: bool
    ) -> None:
        self.folder, self.space, self.base, self.seed = folder, space, base, seed
        with quiet_optuna(), self._storage_errors():
            import optuna

            # The median pruner needs no budget and only a few trials; Hyperband needs hundreds.
            median = optuna.pruners.MedianPruner(PRUNE_AFTER, PRUNE_FROM)
            self.study = optuna.create_study(
                storage=f"sqlite:///{folder.database}",
                study_name=folder.name,
                direction="maximize",
                pruner=median if prune else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            self._check_definition(definition)
            # The processes that trained these have ended, since this process holds the lock.
            for trial in self._in_state("RUNNING"):
                self.queue_again(trial.number)

    def _check_definition(self, now: dict[str, str]) -> None:
        """Refuse other settings, search spaces or budgets than the study began with: their scores can't be compared."""
        then = self.study.user_attrs.get("definition")
        if then is None:
            self.study.set_user_attr("definition", now)
            return
        # Flags first: for a setting that is fixed in one and varied in the other, the flag is what the user has to change.
        for name in sorted({*then, *now}, key=lambda name: (not name.startswith("--"), name)):
            if then.get(name) != now.get(name):
                is_now, was_then = (
                    definition.get(name, "varied" if name.startswith("--") else "none") for definition in (now, then)
                )
                raise ProxRLError(
                    f"{name} is {is_now}, but was {was_then} when the study in {self.folder.path} began: give the same to"
                    " continue it, another --study to keep both, or --clobber to start over"
                )

    def trials(self) -> "list[FrozenTrial]":
        """Return the latest attempt at each trial, ordered by index."""
        latest = {trial.user_attrs[INDEX]: trial for trial in self.study.get_trials(deepcopy=False)}
        return [latest[index] for index in sorted(latest)]

    def done(self) -> "list[FrozenTrial]":
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def ranked(self) -> "list[FrozenTrial]":
        """Return the trials that finished, the best first."""
        return sorted(self._in_state("COMPLETE"), key=lambda trial: -trial.values[0])

    def begin(self) -> "tuple[Trial, dict[str, Any]]":
        """Return the next trial and its settings. Interrupted trials come first."""
        with quiet_optuna(), self._storage_errors():
            import optuna

            waiting = self._in_state("WAITING")
            index = waiting[0].user_attrs[INDEX] if waiting else len(self.trials())
            if not waiting:
                # The first trial is the preset, as far as its values are in the search space.
                self.study.enqueue_trial(starting_point(self.space, self.base) if index == 0 else {}, {INDEX: index})
            # Each trial has its own seed, so that an interrupted study samples the same settings as an uninterrupted one.
            self.study.sampler = optuna.samplers.TPESampler(seed=integer_seed(self.seed, Purpose.TRIAL, index))
            trial = self.study.ask()
            return trial, draw(self.space, trial, self.base)

    def report(self, trial: "Trial", report: int, value: float) -> bool:
        """Store an intermediate return, and return whether to prune the trial."""
        with quiet_optuna(), self._storage_errors():
            trial.report(value, report)  # Optuna ignores a report that is repeated after an interruption
            return bool(trial.should_prune())

    def complete(self, trial: "Trial", score: float) -> None:
        with quiet_optuna(), self._storage_errors():
            self.study.tell(trial, score)

    def give_up(self, trial: "Trial", note: str, failed: bool = False) -> None:
        """End a trial without a score.

        It counts as pruned, so that the sampler avoids such settings, or as `failed` if the settings may not be the cause.
        """
        with quiet_optuna(), self._storage_errors():
            import optuna

            trial.set_user_attr(NOTE, note)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.PRUNED)

    def queue_again(self, number: int) -> None:
        """Queue an interrupted trial, for another worker or a later session to resume."""
        with quiet_optuna(), self._storage_errors():
            import optuna

            old = self.study.get_trials()[number]
            queued = [trial.user_attrs[INDEX] for trial in self._in_state("WAITING")]
            # The new trial is added first: if the process is killed in between, the next session finds both and uses one.
            if old.user_attrs[INDEX] not in queued:
                again = optuna.create_trial(
                    state=optuna.trial.TrialState.WAITING,
                    params=old.params,
                    distributions=old.distributions,
                    user_attrs=old.user_attrs,
                    system_attrs=old.system_attrs,
                    intermediate_values=old.intermediate_values,
                )
                self.study.add_trial(again)
            self.study.tell(number, state=optuna.trial.TrialState.FAIL)

    def importances(self) -> dict[str, float]:
        """Return how much each setting contributes to the differences in score; empty if there are too few trials."""
        if len(self.ranked()) < ENOUGH_FOR_IMPORTANCES:
            return {}
        with quiet_optuna():
            import optuna

            try:
                evaluator = optuna.importance.PedAnovaImportanceEvaluator()
                return optuna.importance.get_param_importances(self.study, evaluator=evaluator)
            except (ValueError, RuntimeError, ImportError):
                return {}

    def _in_state(self, state: str) -> "list[FrozenTrial]":
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name == state]

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Report a damaged file or a full disk in one line."""
        import optuna
        import sqlalchemy.exc

        try:
            yield
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            cause = error.__cause__ or error
            raise ProxRLError(f"can't use {self.folder.database} ({one_line(cause)}); --clobber starts the study over") from error


def require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ProxRLError("tuning needs the tune extra: pip install 'proxrl[tune]'") from None


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log lines and its warnings about experimental features."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
