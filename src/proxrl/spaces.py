"""Spaces as JSON, so that a checkpoint alone is enough to rebuild its policy: no environment has to be made."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from proxrl.errors import ProxRLError


def space_to_json(space: gymnasium.Space) -> dict[str, Any]:
    if isinstance(space, gymnasium.spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gymnasium.spaces.Box):
        bounds = {"low": _compact(space.low), "high": _compact(space.high)}
        return {"kind": "box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name, **bounds}
    raise ProxRLError(f"the space {space} is not supported; wrap the environment so that it is a Box or Discrete")


def space_from_json(document: dict[str, Any]) -> gymnasium.Space:
    if document["kind"] == "discrete":
        return gymnasium.spaces.Discrete(document["n"], start=document["start"])
    dtype, shape = np.dtype(document["dtype"]), tuple(document["shape"])
    low, high = (np.full(shape, document[bound], dtype) for bound in ("low", "high"))
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def _compact(bound: NDArray[Any]) -> Any:
    """One number where all are equal: images have many."""
    values = bound.ravel().tolist()
    return values[0] if len(set(values)) == 1 else bound.tolist()
