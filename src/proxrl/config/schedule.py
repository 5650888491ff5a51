"""Values that change over a run. Every coefficient may follow a schedule, as in `--clip linear:0.2:0.05`.

0.2                          constant
linear:0.2:0.05              linear, from the first step to the last
linear:0.2:0.05:100000       linear until step 100,000, then constant
cosine:0.2:0.05[:STEPS]      half a cosine wave, flat at both ends
piecewise:0.2@0,0.1@50000    each value from its step on
my_module:my_function        a custom function, (step, planned_steps) -> value
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from proxrl.common.imports import import_attribute, name_of
from proxrl.errors import ProxRLError, one_line

FORMS = "a number, linear:START:END[:STEPS], cosine:START:END[:STEPS], piecewise:VALUE@STEP,... or module:function"


SHAPES = ("linear", "cosine", "piecewise")


@dataclass(frozen=True)
class Schedule:
    """A value for every step. Two schedules are equal if their texts are."""

    text: str
    function: Callable[[int, int], float] = field(compare=False, repr=False)
    ends: tuple[float, ...] = field(compare=False, repr=False, default=())  # the values that it is defined by, for range checks

    def __call__(self, step: int, planned_steps: int) -> float:
        try:
            return float(self.function(step, planned_steps))
        except ProxRLError:
            raise
        except Exception as error:
            raise ProxRLError(f"the schedule {self.text} failed at step {step:,}: {one_line(error)}") from error

    def __str__(self) -> str:
        return self.text


Scalar: TypeAlias = float | Schedule


def parse_schedule(text: str) -> Schedule:
    """Return the schedule that a text describes; a plain number is not a schedule. A function is imported at its first call."""
    kind, _, rest = text.partition(":")
    try:
        if kind in ("linear", "cosine"):
            start, end, *steps = (float(word) for word in rest.split(":"))
            if len(steps) > 1 or not all(length >= 1 for length in steps):
                raise ValueError
            shape = _linear if kind == "linear" else _cosine
            return Schedule(text, _between(start, end, shape, steps[0] if steps else None), (start, end))
        if kind == "piecewise":
            points = [tuple(float(number) for number in word.split("@")) for word in rest.split(",")]
            values, starts = zip(*points, strict=True)
            if starts[0] != 0 or list(starts) != sorted(set(starts)):
                raise ValueError
            return Schedule(text, _piecewise(values, starts), values)
    except (ValueError, TypeError):
        raise ProxRLError(f"{text!r} is not a schedule: it must be {FORMS}") from None
    if not all(text.partition(":")):
        raise ProxRLError(f"{text!r} is not a schedule: it must be {FORMS}")
    return Schedule(text, ImportedFunction(text))


def names_function(text: str) -> bool:
    """Return whether a text describes a schedule by the name of a function, which would be imported."""
    return ":" in text and text.partition(":")[0] not in SHAPES


def value_at(scalar: Scalar | None, step: int, planned_steps: int) -> float | None:
    """Return the value of a constant or a schedule at a step."""
    return scalar(step, planned_steps) if isinstance(scalar, Schedule) else scalar


def schedule_of(function: Callable[[int, int], float]) -> Schedule:
    """Return a Python function as a schedule. The function must be importable, so that config.toml can name it."""
    return Schedule(name_of(function), function)


def _between(start: float, end: float, shape: Callable[[float], float], steps: float | None) -> Callable[[int, int], float]:
    def value(step: int, planned_steps: int) -> float:
        progress = min(1.0, step / (planned_steps if steps is None else steps))
        return start + (end - start) * shape(progress)

    return value


def _linear(progress: float) -> float:
    return progress


def _cosine(progress: float) -> float:
    return 0.5 * (1 - math.cos(math.pi * progress))


def _piecewise(values: tuple[float, ...], starts: tuple[float, ...]) -> Callable[[int, int], float]:
    def value(step: int, planned_steps: int) -> float:  # noqa: ARG001 - all schedules have this signature
        return values[bisect.bisect_right(starts, step) - 1]

    return value


@dataclass(frozen=True)
class ImportedFunction:
    """A schedule's function, imported when it is called: the settings of somebody else's run are parsed without running code."""

    text: str

    def __call__(self, step: int, planned_steps: int) -> float:
        function = import_attribute(self.text)
        if not callable(function):
            raise ProxRLError(f"the schedule {self.text} is not a function of (step, planned_steps)")
        return float(function(step, planned_steps))
