"""Returns that others have published, from published_returns.csv: numbers of CleanRL's documentation and the papers it cites."""

import csv
import functools
from importlib import resources
from typing import NamedTuple

from proxrl.envs.envpool import task_name


class Published(NamedTuple):
    """The return of one implementation in one environment."""

    env: str
    implementation: str
    mean: float
    deviation: float | None  # standard deviation
    steps: int | None  # of the agent, not frames

    def score(self) -> str:
        """Return mean ± standard deviation as text."""
        return f"{self.mean:,.2f}" + ("" if self.deviation is None else f" ± {self.deviation:,.2f}")

    def figure(self) -> str:
        """Return the score, implementation and steps as text."""
        return f"{self.score()} ({self.implementation}{'' if self.steps is None else f', {self.steps:,} steps'})"


@functools.cache
def _table() -> dict[str, tuple[Published, ...]]:
    table: dict[str, tuple[Published, ...]] = {}
    text = resources.files("proxrl.report").joinpath("published_returns.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if row["metric"] != "episodic_return":
            continue
        deviation = float(row["std"]) if row["std"] else None
        steps = int(row["agent_steps"]) if row["agent_steps"] else None
        entry = Published(row["environment"], row["implementation"], float(row["mean"]), deviation, steps)
        key = _key(row["environment"])
        if entry not in table.get(key, ()):  # several pages state the same number
            table[key] = (*table.get(key, ()), entry)
    return table


def _key(env: str) -> str:
    """Return one name per task: the tables have `StarPilot (easy)` for EnvPool's `StarpilotEasy-v0`."""
    if env.endswith(" (easy)"):
        return f"{env.removesuffix(' (easy)')}Easy-v0".lower()
    return task_name(env).lower()


def published(env: str) -> tuple[Published, ...]:
    """Return the published returns for exactly this task and version; empty if there are none."""
    return _table().get(_key(env), ())


def reference(env: str) -> Published | None:
    """Return the published return to compare with, or None.

    It is the median of those that state their steps, or else of all; with an even number, the lower of the middle two.
    """
    entries = [entry for entry in published(env) if entry.steps is not None] or list(published(env))
    return sorted(entries, key=lambda entry: entry.mean)[(len(entries) - 1) // 2] if entries else None
