"""`--allow-change`: settings that a run may change when it is resumed, and the file of a run that records such changes."""

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from proxrl.common.files import read_regular
from proxrl.config import CHANGEABLE_ON_RESUME, Config, flag
from proxrl.config.other_names import unknown_setting
from proxrl.config.parse import as_words
from proxrl.errors import ProxRLError

# What only says how to learn from now on: what was learned keeps its meaning, and the saved tensors fit.
ALLOWED = frozenset(
    {"learning_rate", "anneal_learning_rate", "value_learning_rate", "weight_decay", "adam_epsilon"}
    | {"momentum", "max_grad_norm", "accumulate", "epochs", "num_minibatches", "entropy_coef", "value_coef", "clip", "value_clip"}
    | {"target_kl", "kl_coef", "gae_lambda", "advantage_norm", "clip_bootstrap", "rpo_alpha"}
)
# Why others may not change, by the heading under which `proxrl train --help` lists them; and exceptions by name.
REASONS = {
    "environment": "the policy was learned in the environment as it was",
    "Atari games": "the policy was learned in the games as they were",
    "normalization": "the networks have learned from observations and rewards as they were scaled",
    "networks": "the saved networks would not fit, or compute something else",
    "continuous actions": "the saved networks would not fit, or mean other actions",
    "optimizer": "the saved state of the optimizer would not fit",
    "bonuses and learners": "what they have learned would not fit, or was learned for something else",
    "run": "it is part of what the run is",
    "machine": "results would no longer be those of one run",
}
GAMMA = "the value function has learned returns with the old discount factor"
SIZES = "episodes and random streams are numbered by environment and iteration"


class Change(NamedTuple):
    """A setting that was changed when a run was resumed, as the words of its flag."""

    setting: str
    before: str
    after: str
    step: int
    time: str

    def __str__(self) -> str:
        return f"{flag(self.setting)} changed from {self.before} to {self.after} at step {self.step:,}"


def check_allowed(names: Collection[str]) -> frozenset[str]:
    """Return the names of fields, given as fields or flags. Raises a ProxRLError if one of them can't be allowed to change."""
    fields = frozenset(name.removeprefix("--").replace("-", "_") for name in names)
    for name in sorted(fields):
        spec = Config.__dataclass_fields__.get(name)
        if spec is None:
            raise ProxRLError(f"--allow-change: {unknown_setting(name, Config.__dataclass_fields__)}")
        if name not in ALLOWED | CHANGEABLE_ON_RESUME:
            reason = {"gamma": GAMMA, "num_envs": SIZES, "rollout_steps": SIZES}.get(name)
            reason = reason or REASONS.get(spec.metadata["group"], "it would make it a different run")
            raise ProxRLError(f"--allow-change {name}: {reason}; use another --name, or --clobber to start over")
    return fields


def changes_between(before: Config, after: Config, allowed: Iterable[str], step: int) -> list[Change]:
    """Return the allowed changes. Raises a ProxRLError for one by which the saved state of the optimizer would no longer fit."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    changes = []
    for name in sorted(ALLOWED.intersection(allowed)):
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if before.optimizers != after.optimizers:
            raise ProxRLError(f"--allow-change {name}: {REASONS['optimizer']} if it is turned on or off; change only its value")
        changes.append(Change(name, " ".join(as_words(old)), " ".join(as_words(new)), step, now))
    return changes


def record_changes(path: Path, changes: Iterable[Change]) -> None:
    """Append changes to the file, which exists only if there are any."""
    changes = list(changes)
    if not changes:
        return
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(change._asdict()) + "\n" for change in changes)


def read_changes(path: Path) -> list[Change]:
    """Return the recorded changes, without lines that can't be read."""
    changes: list[Change] = []
    try:
        lines = read_regular(path).splitlines()
    except OSError:
        return changes
    for line in lines:
        try:
            entry: Any = json.loads(line)
            setting, before, after, time = (str(entry[name]) for name in ("setting", "before", "after", "time"))
            changes.append(Change(setting, before, after, int(entry["step"]), time))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return changes
