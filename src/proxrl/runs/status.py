"""How a run stands, read from its folder alone: what `runs`, `report`, `watch`, `compare` and a model card show."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from proxrl.runs.evaluations import current_evaluation, read_evaluations
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN, read_lines

# Where a run's status does not tell its return, because an earlier version wrote it, the last lines of its metrics do.
LAST_LINES = 20


@dataclass(frozen=True)
class Summary:
    """One run. Settings are as written in config.toml, so that a run of another version can be listed too."""

    folder: RunFolder
    settings: Mapping[str, Any]
    status: Mapping[str, Any]
    state: str  # running, finished, stopped, failed or new
    step: int
    planned_steps: int | None
    mean_return: float | None  # of the last 100 training episodes
    best_return: float | None
    updated: datetime | None
    evaluations: Mapping[
        str, Any
    ]  # by name of the checkpoint: step, seed, and the summaries of its deterministic and stochastic scores

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
    def evaluated_score(self) -> float | None:
        """The stochastic return of the latest checkpoint, where that was evaluated."""
        scores = current_evaluation(self.folder)
        return None if scores is None else float(scores["stochastic"]["mean"])


def summarise(folder: RunFolder, lines: Iterable[Mapping[str, Any]] | None = None) -> Summary:
    """`lines` are those of its metrics, for who has read them already."""
    status = folder.read_status()
    state = str(status.get("state", "new"))
    if state == "running" and not folder.is_locked():
        state = "stopped"  # killed in a way that left no time to say so
    mean, best, step = (_number(status.get(name)) for name in ("mean_return", "best_return", "step"))
    if state == "running" or "mean_return" not in status:
        told = list(read_lines(folder) if lines is None else lines)
        returns = [float(entry[RETURN]) for entry in told if entry.get(RETURN) is not None]
        if told:  # the status is written every few seconds, the metrics with every iteration
            step = max(step or 0, told[-1]["step"])
        if returns and "mean_return" not in status:
            mean, best = float(np.mean(returns[-LAST_LINES:])), max(returns)
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
        updated=_time(status.get("updated")),
        evaluations=read_evaluations(folder),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError):
        return None
