"""What is read from `info`: whether an episode was a success, and the numbers that --log-info names.

Single environments return a dict of values. Vectorized ones return a dict of arrays [N], where the array `_key` tells which
environments have `key`.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The keys that say whether an episode was a success, in the info of its last step; the first that is present counts.
SUCCESS_KEYS = ("is_success", "success")

# Of one environment, or of all environments of a vectorized class.
Info = Mapping[str, Any]


def as_number(value: Any) -> float:
    """Return a number, a bool, or an array with one element as a float; NaN for anything else."""
    if not isinstance(value, Real):
        try:
            value = value.item()
        except (AttributeError, TypeError, ValueError, RuntimeError):  # arrays and tensors with several elements raise
            return math.nan
    # NumPy's bool, unlike its other types, is no `Real`, but its `item` returns a Python bool.
    return float(value) if isinstance(value, Real) else math.nan


def as_success(number: float) -> bool | None:
    """Return None for numbers other than 0 and 1."""
    return bool(number) if number in (0.0, 1.0) else None


def success_of(info: Info) -> bool | None:
    """Return whether the episode was a success, from the info of its last step; None if the info does not tell."""
    for key in SUCCESS_KEYS:
        if key in info:
            success = as_success(as_number(info[key]))
            if success is not None:
                return success
    return None


def successes_of(info: Info | Sequence[Any], num_envs: int) -> list[bool | None]:
    """Return what `success_of` returns, for all environments of a vectorized class, whose info may also be a list of dicts."""
    if not isinstance(info, Mapping):
        return [success_of(row) if isinstance(row, Mapping) else None for row in info]
    successes: list[bool | None] = [None] * num_envs
    for key in SUCCESS_KEYS:
        if key in info:
            found = map(as_success, read_column(info, key, num_envs).tolist())
            successes = [new if old is None else old for old, new in zip(successes, found, strict=True)]
    return successes


def read_column(info: Info, key: str, num_envs: int) -> NDArray[np.float64]:
    """Return the numbers [N] of a key in the info of a vectorized class, NaN for environments that have none."""
    absent = np.full(num_envs, np.nan)
    try:
        values = np.asarray(info[key])
    except (TypeError, ValueError):  # a tensor on another device, or lists of different lengths
        return absent
    if values.shape not in ((num_envs,), (num_envs, 1)):
        return absent
    if values.dtype.kind not in "biuf":
        values = np.array([as_number(value) for value in values.ravel()])
    present = info.get(f"_{key}")
    return np.where(True if present is None else np.asarray(present, np.bool_), values.reshape(num_envs), np.nan)
