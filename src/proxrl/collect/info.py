"""The numbers that --log-info names: their means over an iteration's steps, and at the ends of its episodes."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from proxrl.types import Rollout, Step

# If no episode has ended yet, a key that no info had after this many iterations is reported as missing.
PATIENCE = 10


class InfoRecorder:
    """Stores the numbers of one rollout after the other. `add` is called with every step."""

    def __init__(self, keys: Sequence[str], steps: int, num_envs: int) -> None:
        self.values = np.full((steps, num_envs, len(keys)), np.nan)
        self.latest = np.full((num_envs, len(keys)), np.nan)

    def add(self, t: int, step: Step) -> None:
        # A dummy step repeats the numbers before it: a pool may report an episode that late, and they belong to its end.
        assert step.info is not None
        self.latest = np.where(step.valid[:, None], step.info, self.latest)
        self.values[t] = self.latest

    def sums(self, rollout: Rollout) -> NDArray[np.float64]:
        """Return, for each of the K keys, the sum over the steps that count, their number, and the same at ends of episodes.

        Steps whose info lacks the key are not counted.
        """
        steps = self.values[: len(rollout.valid)][rollout.valid]
        ends = self.values[[episode.step for episode in rollout.episodes], [episode.env for episode in rollout.episodes]]
        parts = [part for rows in (steps, ends) for part in (np.nansum(rows, axis=0), (~np.isnan(rows)).sum(axis=0))]
        return np.stack(parts, axis=1)


class InfoMetrics:
    """Turns the sums of all ranks into metrics, and reports once which keys no info has. `names` lists the keys that it has."""

    def __init__(self, keys: Sequence[str], names: Callable[[], list[str]]) -> None:
        self.keys, self.names = keys, names
        self.missing = list(keys)
        self.iterations = 0

    def means(self, sums: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics of one iteration, for sums [K, 4]."""
        metrics: dict[str, float] = {}
        for key, (total, count, total_at_end, count_at_end) in zip(self.keys, sums.tolist(), strict=True):
            metrics |= {f"info/{key}": total / count} if count else {}
            metrics |= {f"info_final/{key}": total_at_end / count_at_end} if count_at_end else {}
        self.missing = [key for key in self.missing if f"info/{key}" not in metrics]
        return metrics

    def warnings(self, due: bool) -> list[str]:
        """Return a line about keys that no info has had, once and after some iterations at the latest; otherwise nothing.

        It is due when an episode has ended, because some numbers are given only then, or when the run ends.
        """
        self.iterations += 1
        if not self.missing or not (due or self.iterations >= PATIENCE):
            return []
        missing, self.missing = " ".join(self.missing), []
        numbers = ", ".join(self.names())
        there_are = f"its numbers are {numbers}" if numbers else "it has no numbers"
        return [f"--log-info {missing}: no number of that name in info so far; {there_are}"]
