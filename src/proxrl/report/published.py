"""What others have published for an environment: published_returns.csv, figures of CleanRL's and PPO's own pages."""

import csv
import functools
from importlib import resources
from typing import NamedTuple

from proxrl.envs.envpool import task_name


class Published(NamedTuple):
    env: str
    implementation: str
    mean: float
    deviation: float | None
    steps: int | None  # of the agent, not frames

    def score(self) -> str:
        return f"{self.mean:,.2f}" + ("" if self.deviation is None else f" ± {self.deviation:,.2f}")

    def figure(self) -> str:
        """The whole of it in a line."""
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
        if entry not in table.get(key, ()):  # a figure that several pages state
            table[key] = (*table.get(key, ()), entry)
    return table


def _key(env: str) -> str:
    """One name for one task: the tables say `StarPilot (easy)` where EnvPool says `StarpilotEasy-v0`."""
    if env.endswith(" (easy)"):
        return f"{env.removesuffix(' (easy)')}Easy-v0".lower()
    return task_name(env).lower()


def published(env: str) -> tuple[Published, ...]:
    """The returns that others state for this very task and version; none where there are none."""
    return _table().get(_key(env), ())


def reference(env: str) -> Published | None:
    """The one to measure by: the middle one of those that state their steps, or else of all; the lower of two in the middle."""
    entries = [entry for entry in published(env) if entry.steps is not None] or list(published(env))
    return sorted(entries, key=lambda entry: entry.mean)[(len(entries) - 1) // 2] if entries else None
