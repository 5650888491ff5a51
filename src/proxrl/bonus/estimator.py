"""The advantage estimator that --advantage names."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from proxrl.config.calls import parse_calls
from proxrl.config.plugins import load_plugin
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Array


def load_estimator(
    words: Iterable[str] | None, default: Callable[..., Array], array: Callable[[NDArray[np.float32]], Array] = np.asarray
) -> Callable[..., Array]:
    """Return the estimator of --advantage, which takes and returns what `default` does; `default` itself without one.

    It is called once with few numbers, as `array` makes them, so that one with another signature is rejected before a run begins.
    """
    calls = parse_calls("advantage", words)
    if not calls:
        return default
    if len(calls) > 1:
        raise ProxRLError(f"--advantage names {calls[0].name} and {calls[1].name}, but there is one estimator")
    function = load_plugin("advantage", calls[0].name)
    estimator = functools.partial(estimate, f"--advantage {calls[0].name}", functools.partial(function, **calls[0].kwargs))
    columns = np.zeros((5, 3, 2), np.float32)  # reward, value, next_value, terminated, trace_ends
    columns[4, -1] = 1
    estimator(*map(array, columns), 0.99, 0.95, array(np.ones((3, 2), np.float32)))
    return estimator


def estimate(label: str, function: Callable[..., Any], reward: Array, *arguments: Any) -> Array:
    """Return the advantages [T, N] that a user's function computes."""
    try:
        # Copies: an estimator that writes to its arguments would change the values that the critic learns.
        given = function(*(argument + 0 for argument in (reward, *arguments)))
    except Exception as error:
        raise ProxRLError(f"{label} failed: {one_line(error)} (--debug shows where)") from error
    try:
        if isinstance(reward, np.ndarray):
            result: Array = np.asarray(given, reward.dtype)
        else:
            result = torch.asarray(given, dtype=reward.dtype, device=reward.device)
    except Exception:
        raise ProxRLError(
            f"{label} returned a {type(given).__name__}, but must return advantages {tuple(reward.shape)}"
        ) from None
    if given is None or result.shape != reward.shape:
        got = "None" if given is None else f"the shape {tuple(result.shape)}"
        raise ProxRLError(
            f"{label} returned {got}, but must return advantages of the shape of the rewards, {tuple(reward.shape)}"
        )
    if not np.isfinite(float(abs(result).max())):
        raise ProxRLError(f"{label} returned numbers that are not finite")
    return result
