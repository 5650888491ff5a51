"""The search space of tuning: the table [search] of a preset, with one entry for each setting that is varied.

learning_rate = { low = 1e-5, high = 1e-2, scale = "log", source = "..." }      a number between low and high
gamma = { low = 0.9, high = 0.9999, scale = "complement", source = "..." }      1 - gamma is sampled on a log scale
epochs = { choices = [4, 10, 20], source = "..." }                              one of several

`minibatch_size` is converted to `num_minibatches`: a good size is the same for every batch size, a good number is not.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from proxrl.config import Config, field_types
from proxrl.config.code import check_file
from proxrl.config.parse import parse_value, read_toml, toml_value
from proxrl.config.presets import read_preset
from proxrl.config.schedule import Scalar
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from optuna.trial import Trial

MINIBATCH_SIZE = "minibatch_size"
SCALES = ("linear", "log", "complement")
# These define what a trial is, or where it runs, so they can't differ between the trials of a study.
NOT_SEARCHED = frozenset({"env", "env_kwargs", "name", "seed", "total_steps", "world", "device", "device_ids", "threads"})


@dataclass(frozen=True)
class Range:
    """A number between two others, sampled on a linear or log scale, or so that 1 - value is on a log scale (complement)."""

    low: float
    high: float
    scale: str
    whole: bool  # only whole numbers

    def suggest(self, trial: "Trial", name: str) -> float:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.scale == "log")
        if self.scale == "complement":
            return 1 - trial.suggest_float(name, 1 - self.high, 1 - self.low, log=True)
        return trial.suggest_float(name, self.low, self.high, log=self.scale == "log")

    def sample_of(self, value: Any) -> float | None:
        """Return how Optuna stores this value; None if it is out of range."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return None
        return 1 - value if self.scale == "complement" else value

    def value_of(self, sample: Any) -> Any:
        """Return the setting for what Optuna stores."""
        return 1 - sample if self.scale == "complement" else sample

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g} ({self.scale})"


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        return self.value_of(trial.suggest_categorical(name, [stored_choice(value) for value in self.values]))

    def sample_of(self, value: Any) -> Any:
        return stored_choice(value) if value in self.values else None

    def value_of(self, sample: Any) -> Any:
        return next(value for value in self.values if stored_choice(value) == sample)

    def __str__(self) -> str:
        return "one of " + ", ".join(str(stored_choice(value)) for value in self.values)


Dimension: TypeAlias = Range | Choices
Space: TypeAlias = dict[str, Dimension]


def stored_choice(value: Any) -> Any:
    """Return a choice as Optuna can store it, which takes no lists."""
    return value if isinstance(value, bool | int | float | str) else toml_value(value).strip('"')


def load_space(preset: str, family_preset: str, file: Path | None, fixed: Collection[str], trust: bool = False) -> Space:
    """Return the search space of a preset, or else of the family's preset.

    The entries of `file` replace those of the preset, and settings in `fixed` are left out. `trust` allows files of others to
    name code.
    """
    for source in [Path(preset)] * preset.endswith(".toml") + ([] if file is None else [file]):
        check_file(source, choices_in(read_toml(source)), fixed, trust)
    space = read_space(read_preset(preset), f"the preset {preset}") or read_space(read_preset(family_preset), family_preset)
    if file is not None:
        from_file = read_space(read_toml(file), str(file))
        if not from_file:
            raise ProxRLError(f"{file} has no table [search]; docs/tune.md shows one")
        # Both names set the same thing, so the file's entry replaces the preset's under either name.
        for name, other in ((MINIBATCH_SIZE, "num_minibatches"), ("num_minibatches", MINIBATCH_SIZE)):
            if name in from_file and other not in from_file:
                space.pop(other, None)
        space |= from_file
    for name in fixed:
        space.pop(MINIBATCH_SIZE if name == "num_minibatches" else name, None)
        space.pop(name, None)
    if not space:
        raise ProxRLError("nothing is left to vary: every setting of the search space is fixed; leave out some of the flags")
    if MINIBATCH_SIZE in space and "num_minibatches" in space:
        raise ProxRLError("minibatch_size and num_minibatches set the same thing; search only one of them")
    return space


def choices_in(document: dict[str, Any]) -> dict[str, Any]:
    """Return the choices of each setting in a table [search]."""
    table = document.get("search", {})
    return (
        {name: entry.get("choices") for name, entry in table.items() if isinstance(entry, dict)}
        if isinstance(table, dict)
        else {}
    )


def read_space(document: dict[str, Any], where: str) -> Space:
    table = document.get("search", {})
    if not isinstance(table, dict):
        raise ProxRLError(f"the search space in {where} must be a table [search]")
    return {name: read_dimension(name, entry, where) for name, entry in table.items()}


def read_dimension(name: str, entry: Any, where: str) -> Dimension:
    kind = int if name == MINIBATCH_SIZE else field_types().get(name)
    if kind is None or name in NOT_SEARCHED:
        why = "there is no such setting" if kind is None else "all trials of a study must share it"
        raise ProxRLError(f"{where} varies {name!r}, but {why}")
    keys = set(entry) if isinstance(entry, dict) else set()
    if keys == {"choices", "source"} and isinstance(entry["choices"], list) and entry["choices"]:
        values = tuple(_checked(name, value, where) for value in entry["choices"])
        return Choices(tuple({toml_value(value): value for value in values}.values()))
    if keys - {"scale"} != {"low", "high", "source"}:
        forms = '{ low = ..., high = ..., scale = "log", source = "..." } or { choices = [...], source = "..." }'
        raise ProxRLError(f"{where} must give {name} as {forms}")
    scale, whole = entry.get("scale", "linear"), kind is int
    if scale not in SCALES or (whole and scale == "complement"):
        raise ProxRLError(
            f"{where}: the scale of {name} is {scale!r}, but must be one of {', '.join(SCALES[: 2 if whole else 3])}"
        )
    if not whole and kind is not float and kind != Scalar and kind != Scalar | None and kind != float | None:
        raise ProxRLError(f"{where}: {name} is not a number; give choices for it")
    low, high = (_checked(name, entry[end], where) for end in ("low", "high"))
    if not all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high)) or not low < high:
        raise ProxRLError(f"{where}: {name} goes from {low} to {high}; give two numbers, low below high")
    if (scale == "log" and low <= 0) or (scale == "complement" and high >= 1):
        limit = "low must be above 0" if scale == "log" else "high must be below 1"
        raise ProxRLError(f"{where}: {name} has the scale {scale!r}, so its {limit}")
    return Range(low, high, scale, whole)


def _checked(name: str, value: Any, where: str) -> Any:
    """Return the value if it is valid by itself. Whether it is valid together with others is checked in each trial."""
    if name == MINIBATCH_SIZE:
        if not isinstance(value, int) or isinstance(value, bool) or value < 2:
            raise ProxRLError(f"{where}: {name} is {value!r}, but must be a whole number of at least 2")
        return value
    try:
        parsed = parse_value(name, value)
        Config().replace(**{name: parsed}).check_ranges()
    except ProxRLError as error:
        raise ProxRLError(f"{where}: {error}") from None
    return parsed


def draw(space: Space, trial: "Trial", base: Config) -> dict[str, Any]:
    """Sample the settings of a trial."""
    return as_settings({name: dimension.suggest(trial, name) for name, dimension in space.items()}, base)


def as_settings(values: dict[str, Any], base: Config) -> dict[str, Any]:
    """Return fields of `Config`: `minibatch_size` becomes `num_minibatches`."""
    settings = dict(values)
    size = settings.pop(MINIBATCH_SIZE, None)
    if size is not None:
        batch = base.replace(**settings).batch_size
        # The largest number that divides the batch and gives minibatches of at least this size.
        settings["num_minibatches"] = max(count for count in range(1, max(1, batch // size) + 1) if batch % count == 0)
    return settings


def starting_point(space: Space, base: Config) -> dict[str, Any]:
    """Return the preset's values as Optuna stores them, without those outside the search space."""
    samples = {name: dimension.sample_of(getattr(base, name)) for name, dimension in space.items()}
    return {name: sample for name, sample in samples.items() if sample is not None}
