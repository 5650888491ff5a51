"""Returns of evaluation episodes, and `evaluations.json`, the file of a run that stores them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxrl.common.files import one_line_errors, read_regular, replacing
from proxrl.common.numbers import format_number
from proxrl.runs.folder import RunFolder
from proxrl.runs.notebook import table


@dataclass(frozen=True)
class Scores:
    """Returns and lengths of evaluation episodes, and the successes of those whose info told."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool, ...] = ()

    @property
    def mean(self) -> float:
        """Mean return."""
        return mean_of(self.returns)

    @property
    def deviation(self) -> float:
        """Standard deviation of the returns."""
        return math.sqrt(mean_of([(value - self.mean) ** 2 for value in self.returns]))

    @property
    def success_rate(self) -> float | None:
        """Share of successes; None if no environment told (see `Episode.success`)."""
        return mean_of(self.successes) if self.successes else None

    def summary(self) -> dict[str, Any]:
        """Return statistics and returns, as JSON can store them."""
        return {
            "mean": self.mean,
            "std": self.deviation,
            "min": min(self.returns),
            "max": max(self.returns),
            "mean_length": mean_of(self.lengths),
            "success_rate": self.success_rate,
            "episodes": len(self.returns),
            "returns": list(self.returns),
        }

    def __str__(self) -> str:
        success = "" if self.success_rate is None else f", success rate {self.success_rate:.0%}"
        episodes = f"{len(self.returns)} episode{'s' if len(self.returns) > 1 else ''}"
        return f"return {format_number(self.mean)} ± {format_number(self.deviation)} over {episodes}{success}"

    def _repr_html_(self) -> str:
        return ScoresByKind({"": self})._repr_html_()


class ScoresByKind(dict[str, Scores]):
    """What `proxrl.evaluate` returns: the scores of deterministic and of stochastic episodes, by these names."""

    def __str__(self) -> str:
        return "\n".join(f"{kind}: {scores}" for kind, scores in self.items())

    def _repr_html_(self) -> str:
        head = ("", "mean return", "std", "min", "max", "mean length", "success rate", "episodes")
        rows = []
        for kind, scores in self.items():
            numbers = (scores.mean, scores.deviation, min(scores.returns), max(scores.returns), mean_of(scores.lengths))
            success = "-" if scores.success_rate is None else f"{scores.success_rate:.0%}"
            rows.append([kind, *map(format_number, numbers), success, str(len(scores.returns))])
        return table(head, rows)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean. Listing runs does not wait for NumPy to be imported."""
    return sum(values) / len(values)


def save_evaluation(folder: RunFolder, checkpoint: str, step: int, seed: int, scores: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the scores of a checkpoint: the summaries of its deterministic and its stochastic episodes."""
    evaluations = {**read_evaluations(folder), checkpoint: {"step": step, "seed": seed, **scores}}
    with one_line_errors("write", folder.evaluations_path), replacing(folder.evaluations_path) as temporary:
        temporary.write_text(json.dumps(evaluations, indent=2) + "\n")


def current_evaluation(folder: RunFolder, checkpoint: str = "latest") -> dict[str, Any] | None:
    """Return the stored scores of a checkpoint, or None if there are none for the step that it now has."""
    scores: Any = read_evaluations(folder).get(checkpoint)
    try:
        _ = [float(scores[kind]["mean"]) for kind in ("deterministic", "stochastic")]
        return dict(scores) if scores["step"] == folder.checkpoint_step(checkpoint) else None
    except (TypeError, KeyError, ValueError):
        return None


def read_evaluations(folder: RunFolder) -> dict[str, Any]:
    """Return the stored scores by name of the checkpoint; empty if there is no readable file."""
    try:
        evaluations = json.loads(read_regular(folder.evaluations_path))
    except (OSError, ValueError, RecursionError):
        return {}
    return evaluations if isinstance(evaluations, dict) else {}
