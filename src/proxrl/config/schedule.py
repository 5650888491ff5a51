"""Numbers that change over a run. Every coefficient may be one: `--clip linear:0.2:0.05`.

0.2                          stays
linear:0.2:0.05              falls evenly from the first step to the last
linear:0.2:0.05:100000       the same, but done at step 100,000, and stays then
cosine:0.2:0.05[:STEPS]      along half a cosine wave, slow at both ends
piecewise:0.2@0,0.1@50000    holds each value from its step on
my_module:my_function        a function of yours, (step, planned_steps) -> value
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from proxrl.common.imports import import_attribute, name_of
from proxrl.errors import ProxRLError, one_line

FORMS = "a number, linear:START:END[:STEPS], cosine:START:END[:STEPS], piecewise:VALUE@STEP,... or module:function"


@dataclass(frozen=True)
class Schedule:
    """A value for every step. Two schedules are equal if they are written alike."""

    text: str
    function: Callable[[int, int], float] = field(compare=False, repr=False)
    ends: tuple[float, ...] = field(compare=False, repr=False, default=())  # values it is made of, to check their range

    def __call__(self, step: int, planned_steps: int) -> float:
        try:
            return float(self.function(step, planned_steps))
        except Exception as error:
            raise ProxRLError(f"the schedule {self.text} failed at step {step:,}: {one_line(error)}") from error

    def __str__(self) -> str:
        return self.text


Scalar: TypeAlias = float | Schedule


def parse_schedule(text: str) -> Schedule:
    """Read one of the forms above; a plain number is not one of them."""
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
    return Schedule(text, _imported(text))


def value_at(scalar: Scalar | None, step: int, planned_steps: int) -> float | None:
    return scalar(step, planned_steps) if isinstance(scalar, Schedule) else scalar


def schedule_of(function: Callable[[int, int], float]) -> Schedule:
    """A schedule from a Python function, which the run's config.toml must be able to name."""
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
    def value(step: int, planned_steps: int) -> float:  # noqa: ARG001 - the signature of schedules
        return values[bisect.bisect_right(starts, step) - 1]

    return value


def _imported(text: str) -> Callable[[int, int], float]:
    if not all(text.partition(":")):
        raise ProxRLError(f"{text!r} is not a schedule: it must be {FORMS}")
    function = import_attribute(text)
    if not callable(function):
        raise ProxRLError(f"the schedule {text} is not a function of (step, planned_steps)")
    return function  # type: ignore[no-any-return]
