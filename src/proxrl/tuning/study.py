"""The trials of a study, kept by Optuna in SQLite. One process at a time reads and writes them: the one that has the lock."""

import contextlib
import shutil
import warnings
from collections.abc import Iterator
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

# A trial is judged so many times per seed, whatever its batch: Optuna compares trials at equal counts.
PARTS = 20
# No trial is given up before this share of its first seed, nor before so many trials have gone all the way to compare with.
PRUNE_FROM, PRUNE_AFTER = PARTS // 4, 5
ENOUGH_TO_WEIGH = 10
# What the study keeps about a trial: its number, which an interruption does not change, and why it was given up.
INDEX, NOTE = "index", "note"


class StudyFolder:
    """`studies/<env>/<study>/`: what is in it, and the lock on it."""

    def __init__(self, studies_dir: Path, env: str, name: str) -> None:
        if not name or any(sign in name for sign in "/\\:") or name.startswith("."):
            raise ProxRLError(f"--study {name!r} can't be a folder name; use letters, digits, '-' and '_'")
        self.name = name
        self.path = studies_dir / folder_name(env) / name
        self.database, self.best, self.runs = self.path / "study.sqlite3", self.path / "best.toml", self.path / "runs"
        self.start = self.path / "start.toml"  # the preset file that the study began with, whatever becomes of the file
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
        with one_line_errors("delete the study in", self.path):
            # The trials first: without the database, a new study would go on with runs of the old one.
            for path in self._trials.glob("trial-*"):
                shutil.rmtree(path)
            databases = [self.path / f"{self.database.name}{ending}" for ending in ("", "-journal", "-wal", "-shm")]
            for path in (*databases, *self.path.glob("worker-*.log"), self.best, self.start):
                path.unlink(missing_ok=True)


class Study:
    """Optuna's study in terms of ours. A trial that was interrupted is queued again under its old index, and goes on from its
    checkpoints, so that a study that was killed ends as one that was not.
    """

    def __init__(
        self, folder: StudyFolder, definition: dict[str, str], space: Space, base: Config, seed: int, prune: bool
    ) -> None:
        self.folder, self.space, self.base, self.seed = folder, space, base, seed
        with quiet_optuna(), self._readable():
            import optuna

            # The median asks nothing of the budget and little of the number of trials; Hyperband wants hundreds.
            median = optuna.pruners.MedianPruner(PRUNE_AFTER, PRUNE_FROM)
            self.study = optuna.create_study(
                storage=f"sqlite:///{folder.database}",
                study_name=folder.name,
                direction="maximize",
                pruner=median if prune else optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
            self._check_definition(definition)
            # Whoever trained them is gone: the lock is ours.
            for trial in self._in_state("RUNNING"):
                self.queue_again(trial.number)

    def _check_definition(self, now: dict[str, str]) -> None:
        """Scores of other settings, spaces or budgets can't be compared."""
        then = self.study.user_attrs.get("definition")
        if then is None:
            self.study.set_user_attr("definition", now)
            return
        # Flags first: of a setting that is fixed in one and varied in the other, that is what to change.
        for name in sorted({*then, *now}, key=lambda name: (not name.startswith("--"), name)):
            if then.get(name) != now.get(name):
                is_now, was_then = (words.get(name, "varied" if name.startswith("--") else "none") for words in (now, then))
                raise ProxRLError(
                    f"{name} is {is_now}, but was {was_then} when the study in {self.folder.path} was begun: give the same again"
                    " to go on with it, another --study to keep both, or --clobber to start over"
                )

    def trials(self) -> "list[FrozenTrial]":
        """The latest attempt at each trial, in the order of their indices."""
        latest = {trial.user_attrs[INDEX]: trial for trial in self.study.get_trials(deepcopy=False)}
        return [latest[index] for index in sorted(latest)]

    def done(self) -> "list[FrozenTrial]":
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def ranked(self) -> "list[FrozenTrial]":
        """Those that went all the way, the best first."""
        return sorted(self._in_state("COMPLETE"), key=lambda trial: -trial.values[0])

    def begin(self) -> "tuple[Trial, dict[str, Any]]":
        """The next trial, an interrupted one first, and its settings."""
        with quiet_optuna(), self._readable():
            import optuna

            waiting = self._in_state("WAITING")
            index = waiting[0].user_attrs[INDEX] if waiting else len(self.trials())
            if not waiting:
                # The first is the preset, as far as it lies within what is varied.
                self.study.enqueue_trial(starting_point(self.space, self.base) if index == 0 else {}, {INDEX: index})
            # Of a stream of its own, so that a study that was interrupted draws what it would have drawn.
            self.study.sampler = optuna.samplers.TPESampler(seed=integer_seed(self.seed, Purpose.TRIAL, index))
            trial = self.study.ask()
            return trial, draw(self.space, trial, self.base)

    def report(self, trial: "Trial", part: int, value: float) -> bool:
        """Whether to give the trial up."""
        with quiet_optuna(), self._readable():
            trial.report(value, part)  # a second time, after an interruption, it is ignored
            return bool(trial.should_prune())

    def complete(self, trial: "Trial", score: float) -> None:
        with quiet_optuna(), self._readable():
            self.study.tell(trial, score)

    def give_up(self, trial: "Trial", note: str, failed: bool = False) -> None:
        """Pruned, so that the sampler keeps away from such settings; `failed` if they may not be what is wrong."""
        with quiet_optuna(), self._readable():
            import optuna

            trial.set_user_attr(NOTE, note)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.PRUNED)

    def queue_again(self, number: int) -> None:
        """Let a later session, or another worker, go on with a trial."""
        with quiet_optuna(), self._readable():
            import optuna

            old = self.study.get_trials()[number]
            queued = [trial.user_attrs[INDEX] for trial in self._in_state("WAITING")]
            # The new one first: if a kill comes between the two, the next session finds both and takes one.
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
        """How much of the score hangs on each setting; none where there are too few trials to tell."""
        if len(self.ranked()) < ENOUGH_TO_WEIGH:
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
    def _readable(self) -> Iterator[None]:
        """A damaged file or a full disk is one line."""
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
    """Its log lines and its warnings about what is experimental tell a user of ProxRL nothing."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
