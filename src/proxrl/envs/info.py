"""What is read from `info`: whether an episode was a success, and the numbers that --log-info names.

Single environments return a dict of values. Vectorized ones return a dict of arrays [N], where the array `_key` tells which
environments have `key`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
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


# --- numbers that are logged ----------------------------------------------------------------------------------------------


def locate(info: Info, key: str) -> tuple[Info, str]:
    """Return the dict that holds a key, and its name there: that of `reward/forward` is `forward` in the dict `reward`."""
    while key not in info and isinstance(info.get(outer := key.partition("/")[0]), Mapping):
        info, key = info[outer], key.removeprefix(f"{outer}/")
    return info, key


def read_numbers(info: Info, keys: Sequence[str]) -> list[float]:
    """Return the numbers of some keys of one environment's info, NaN for those that it lacks."""
    located = (locate(info, key) for key in keys)
    return [as_number(holder.get(name)) for holder, name in located]


def read_rows(info: Info | Sequence[Any], keys: Sequence[str], num_envs: int) -> NDArray[np.float64]:
    """Return the numbers [N, K] of some keys in the info of a vectorized class, which may also be a list of dicts."""
    if not isinstance(info, Mapping):
        return np.array([read_numbers(row if isinstance(row, Mapping) else {}, keys) for row in info])
    located = [locate(info, key) for key in keys]
    columns = [read_column(holder, name, num_envs) if name in holder else np.full(num_envs, np.nan) for holder, name in located]
    return np.stack(columns, axis=1)


def number_names(info: Info, is_number: Callable[[Info, str], bool]) -> Iterator[str]:
    """Yield the keys of numbers in an info, with slashes for those in dicts inside it."""
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from (f"{key}/{name}" for name in number_names(value, is_number))
        elif not (key.startswith("_") and key[1:] in info) and is_number(info, key):
            yield key


class VectorInfo:
    """Base of pools whose info is a dict of arrays: reads the numbers that --log-info names."""

    num_envs: int
    _info_keys: tuple[str, ...] = ()
    _last_info: Info = MappingProxyType({})

    def record_info(self, keys: Sequence[str]) -> None:
        self._info_keys = tuple(keys)

    def info_names(self) -> list[str]:
        def is_number(info: Info, key: str) -> bool:
            return not np.isnan(read_column(info, key, self.num_envs)).all()

        return list(number_names(self._last_info, is_number))

    def _read_info(
        self, info: Info, ended: NDArray[np.bool_] | None = None, final_info: Info | Sequence[Any] = MappingProxyType({})
    ) -> NDArray[np.float64] | None:
        """Return `Step.info`. With same-step autoreset, `final_info` has the numbers of the environments that have `ended`."""
        if not self._info_keys:
            return None
        self._last_info = info
        rows = read_rows(info, self._info_keys, self.num_envs)
        if ended is not None and ended.any():
            rows[ended] = read_rows(final_info, self._info_keys, self.num_envs)[ended]
        return rows
