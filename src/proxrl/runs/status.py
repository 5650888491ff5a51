"""The status of a run, read from its folder, as `runs`, `report`, `watch`, `compare` and model cards show it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from proxrl.runs.changes import Change, read_changes
from proxrl.runs.evaluations import current_evaluation, mean_of, read_evaluations
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN, read_lines
from proxrl.runs.origin import Origin, read_origin

# If status.json has no return, because an earlier version wrote it, the return is the mean of so many last lines of the metrics.
LAST_LINES = 20


@dataclass(frozen=True)
class Summary:
    """The status of one run. Settings are as written in config.toml, so that runs of other versions can be listed too."""

    folder: RunFolder
    settings: Mapping[str, Any]
    status: Mapping[str, Any]
    state: str  # running, finished, stopped, failed or new
    step: int
    planned_steps: int | None
    mean_return: float | None  # of the last 100 training episodes
    best_return: float | None
    success_rate: float | None  # of the same episodes; None if their info does not tell
    updated: datetime | None
    # By name of the checkpoint: step, seed, and the summaries of its deterministic and stochastic scores.
    evaluations: Mapping[str, Any]

    @property
    def changes(self) -> list[Change]:
        """Settings that were changed by --allow-change."""
        return read_changes(self.folder.changes_path)

    @property
    def origin(self) -> Origin | None:
        """The checkpoint of another run from which this one started (--init-from)."""
        return read_origin(self.folder)

    @property
    def env(self) -> str:
        return str(self.settings.get("env", "?"))

    @property
    def name(self) -> str:
        return str(self.settings.get("name", "?"))

    @property
    def seed(self) -> int | None:
        seed = self.settings.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def sudden_end(self) -> str | None:
        """What to say about a run whose process has ended without writing its status, or None."""
        if self.state == "stopped" and self.status.get("state") == "running":
            return sudden_end(self.step)
        return None

    @property
    def evaluated_score(self) -> float | None:
        """The stochastic return of the latest checkpoint, or None if it was not evaluated."""
        scores = current_evaluation(self.folder)
        return None if scores is None else float(scores["stochastic"]["mean"])

    @property
    def evaluated_success_rate(self) -> float | None:
        """The success rate of the same episodes, or None if their info does not tell."""
        scores = current_evaluation(self.folder)
        return None if scores is None else _number(scores["stochastic"].get("success_rate"))


def sudden_end(step: int) -> str:
    """Return what may have happened to a process that ended without writing its status."""
    return (
        f"ended without warning at about step {step:,}: it was killed, ran out of memory, or its environment ended the process"
        " (os._exit or a crash)"
    )


def summarize(folder: RunFolder, lines: Iterable[Mapping[str, Any]] | None = None) -> Summary:
    """Return the status of a run. `lines` are the lines of its metrics, if the caller has read them already."""
    status = folder.read_status()
    state = str(status.get("state", "new"))
    if state == "running" and not folder.is_locked():
        state = "stopped"  # see `Summary.sudden_end`
    mean, best, step = (_number(status.get(name)) for name in ("mean_return", "best_return", "step"))
    if "running" in (state, status.get("state")) or "mean_return" not in status:
        entries = list(read_lines(folder) if lines is None else lines)
        returns = [float(entry[RETURN]) for entry in entries if entry.get(RETURN) is not None]
        if entries:  # the status is written every few seconds, the metrics in every iteration
            step = max(step or 0, entries[-1]["step"])
        if returns and "mean_return" not in status:
            mean, best = mean_of(returns[-LAST_LINES:]), max(returns)
    planned = _number(status.get("planned_steps"))
    return Summary(
        folder=folder,
        settings=folder.settings(),
        status=status,
        state=state,
        step=int(step or 0),
        planned_steps=None if planned is None else int(planned),
        mean_return=mean,
        best_return=best,
        success_rate=_number(status.get("success_rate")),
        updated=_time(status.get("updated")),
        evaluations=read_evaluations(folder),
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # of a whole number that is too large
        return None
    return number if math.isfinite(number) else None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
