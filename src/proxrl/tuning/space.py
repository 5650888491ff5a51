"""What tuning varies: the table [search] of a preset, with one entry for each setting.

learning_rate = { low = 1e-5, high = 1e-2, scale = "log", source = "..." }      a number between two others
gamma = { low = 0.9, high = 0.9999, scale = "complement", source = "..." }      1 - gamma is drawn on a log scale
epochs = { choices = [4, 10, 20], source = "..." }                              one of several

`minibatch_size` stands for the `num_minibatches` that give it, because a size suits any batch and a number does not.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from proxrl.config import Config, field_types
from proxrl.config.parse import parse_value, read_toml, toml_value
from proxrl.config.presets import read_preset
from proxrl.config.schedule import Scalar
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from optuna.trial import Trial

MINIBATCH_SIZE = "minibatch_size"
SCALES = ("linear", "log", "complement")
# They say what a trial is, or where it computes, so they can't differ between the trials of a study.
NOT_SEARCHED = frozenset({"env", "env_kwargs", "name", "seed", "total_steps", "world", "device", "device_ids", "threads"})


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    scale: str
    whole: bool  # numbers only

    def suggest(self, trial: "Trial", name: str) -> float:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.scale == "log")
        if self.scale == "complement":
            return 1 - trial.suggest_float(name, 1 - self.high, 1 - self.low, log=True)
        return trial.suggest_float(name, self.low, self.high, log=self.scale == "log")

    def drawn(self, value: Any) -> float | None:
        """What the study holds where a trial has this value; None for one out of range."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not self.low <= value <= self.high:
            return None
        return 1 - value if self.scale == "complement" else value

    def value_of(self, drawn: Any) -> Any:
        return 1 - drawn if self.scale == "complement" else drawn

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g} ({self.scale})"


@dataclass(frozen=True)
class Choices:
    values: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        return self.value_of(trial.suggest_categorical(name, [label(value) for value in self.values]))

    def drawn(self, value: Any) -> Any:
        return label(value) if value in self.values else None

    def value_of(self, drawn: Any) -> Any:
        return next(value for value in self.values if label(value) == drawn)

    def __str__(self) -> str:
        return "one of " + ", ".join(str(label(value)) for value in self.values)


Dimension: TypeAlias = Range | Choices
Space: TypeAlias = dict[str, Dimension]


def label(value: Any) -> Any:
    """A choice as a study can hold it: it knows no lists."""
    return value if isinstance(value, bool | int | float | str) else toml_value(value).strip('"')


def load_space(preset: str, family_preset: str, file: Path | None, fixed: Iterable[str]) -> Space:
    """What the preset varies, or else that of the family, with the entries of a file in their place, without what is fixed."""
    space = read_space(read_preset(preset), f"the preset {preset}") or read_space(read_preset(family_preset), family_preset)
    if file is not None:
        own = read_space(read_toml(file), str(file))
        if not own:
            raise ProxRLError(f"{file} has no table [search]; docs/tune.md shows one")
        # Two names for one thing: the file's word counts.
        for name, other in ((MINIBATCH_SIZE, "num_minibatches"), ("num_minibatches", MINIBATCH_SIZE)):
            if name in own and other not in own:
                space.pop(other, None)
        space |= own
    for name in fixed:
        space.pop(MINIBATCH_SIZE if name == "num_minibatches" else name, None)
        space.pop(name, None)
    if not space:
        raise ProxRLError("nothing is left to vary, since every setting of the search is fixed; leave out some of the flags")
    if MINIBATCH_SIZE in space and "num_minibatches" in space:
        raise ProxRLError("minibatch_size and num_minibatches say the same; search one of them")
    return space


def read_space(document: dict[str, Any], where: str) -> Space:
    table = document.get("search", {})
    if not isinstance(table, dict):
        raise ProxRLError(f"{where} must give what is varied in a table [search]")
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
    """A value in range by itself; whether it goes with the others only a trial can tell."""
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
    """The settings of a trial."""
    return as_settings({name: dimension.suggest(trial, name) for name, dimension in space.items()}, base)


def as_settings(values: dict[str, Any], base: Config) -> dict[str, Any]:
    settings = dict(values)
    size = settings.pop(MINIBATCH_SIZE, None)
    if size is not None:
        batch = base.replace(**settings).batch_size
        # The nearest that divides the batch and gives no smaller minibatches.
        settings["num_minibatches"] = max(count for count in range(1, max(1, batch // size) + 1) if batch % count == 0)
    return settings


def starting_point(space: Space, base: Config) -> dict[str, Any]:
    """The preset's own values, as a study holds them; what lies outside the space is left to be drawn."""
    drawn = {name: dimension.drawn(getattr(base, name)) for name, dimension in space.items()}
    return {name: value for name, value in drawn.items() if value is not None}
