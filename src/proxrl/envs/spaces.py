"""Gymnasium's spaces: which ones can be trained on, as trees of leaves, and as JSON.

As JSON they travel in checkpoints, so that one alone is enough to rebuild its policy: no environment has to be made.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.envs.api import Environments
from proxrl.errors import ProxRLError
from proxrl.types import Tree

# Smaller arrays of bytes are taken for numbers, not for images.
SMALLEST_IMAGE = 7

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

_INSTEAD = {
    "Graph": "a Dict of Boxes, padded to the largest number of nodes and edges",
    "Text": "a MultiDiscrete of its characters' numbers, padded to the longest text",
    "Sequence": "a Box or MultiDiscrete padded to the longest sequence, with its length beside it",
    "OneOf": "a Tuple of a Discrete, which says the one that counts, and all the alternatives",
}


class Masked(spaces.Dict):
    """Observations with what is allowed beside them: one bit for every choice of every discrete part of the action.

    Whether the environment tells its mask in `info` or under a key of its observation, from its adapter on it is found here.
    """

    def __init__(self, observation: gymnasium.Space, choices: int) -> None:
        super().__init__({"observation": observation, "action_mask": spaces.MultiBinary(choices)})

    @property
    def choices(self) -> int:
        return int(self["action_mask"].shape[0])  # type: ignore[index]  # a MultiBinary always has a shape


def refuse(space: gymnasium.Space) -> ProxRLError:
    """Why a space can't be trained on, and what to wrap it in."""
    kind = type(space).__name__
    instead = _INSTEAD.get(kind, "a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these")
    return ProxRLError(f"{kind} spaces have no fixed size to build a network for; wrap the environment so that it is {instead}")


def space_tree(space: gymnasium.Space) -> Tree:
    """Nested spaces as a tree whose leaves are plain spaces."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(value) for key, value in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(value) for value in space)
    if not isinstance(space, LEAVES):
        raise refuse(space)
    return space


def is_image(space: gymnasium.Space) -> bool:
    """Bytes in three dimensions, of which two are large."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and sorted(space.shape)[1] >= SMALLEST_IMAGE
    )


def choices(space: gymnasium.Space) -> int:
    """Bits in a mask for a leaf of an action space: one per choice, two (no, yes) per bit of a MultiBinary."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return 2 * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else 0


def wrong_values(space: gymnasium.Space | None, array: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Where values can't be learnt from; None where all can."""
    if np.issubdtype(array.dtype, np.floating):
        wrong = ~np.isfinite(array)
    elif isinstance(space, spaces.Discrete):
        wrong = (array < space.start) | (array >= space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        wrong = (array < space.start) | (array >= space.start + space.nvec)
    else:
        return None
    return wrong if wrong.any() else None


def space_difference(environments: Environments, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> str | None:
    """Return in words how the spaces of `environments` differ from those a policy was trained with, or None if it can be used.

    The text is a clause that error messages can embed.
    """
    pairs = {
        "observation space": (environments.observation_space, observation_space),
        "action space": (environments.action_space, action_space),
    }
    for name, (space, trained) in pairs.items():
        if not same_form(space, trained):
            return f"the environment's {name} is {space}, but the policy was trained with {trained}"
    return None


def same_form(one: gymnasium.Space, other: gymnasium.Space) -> bool:
    """Return whether a policy for one space fits the other: equal structure, kinds and sizes. Bounds may differ."""
    return bool(_form(space_to_json(one)) == _form(space_to_json(other)))


def _form(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _form(value) for key, value in document.items() if key not in ("low", "high", "dtype")}
    return [_form(value) for value in document] if isinstance(document, list) else document


def space_to_json(space: gymnasium.Space) -> dict[str, Any]:
    match space:
        case Masked():
            return {"kind": "masked", "observation": space_to_json(space["observation"]), "choices": space.choices}
        case spaces.Dict():
            return {"kind": "dict", "parts": [[key, space_to_json(part)] for key, part in space.items()]}
        case spaces.Tuple():
            return {"kind": "tuple", "parts": [space_to_json(part) for part in space]}
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start), "dtype": np.dtype(space.dtype).name}
        case spaces.MultiDiscrete():
            numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"kind": "multidiscrete", **numbers, "dtype": np.dtype(space.dtype).name}
        case spaces.MultiBinary():
            return {"kind": "multibinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
        case spaces.Box():
            bounds = {"low": _compact(space.low), "high": _compact(space.high)}
            return {"kind": "box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name, **bounds}
    raise refuse(space)


def space_from_json(document: dict[str, Any]) -> gymnasium.Space:
    dtype, shape = np.dtype(document.get("dtype", "float32")), tuple(document.get("shape", ()))
    match document["kind"]:
        case "masked":
            return Masked(space_from_json(document["observation"]), document["choices"])
        case "dict":
            return spaces.Dict([(key, space_from_json(part)) for key, part in document["parts"]])
        case "tuple":
            return spaces.Tuple([space_from_json(part) for part in document["parts"]])
        case "discrete":
            kind = {} if dtype == np.int64 else {"dtype": dtype.type}  # not every Gymnasium has a choice
            return spaces.Discrete(document["n"], start=document["start"], **kind)
        case "multidiscrete":
            return spaces.MultiDiscrete(document["nvec"], dtype=dtype.type, start=document["start"])
        case "multibinary":
            return spaces.MultiBinary(document["n"])  # 3 and [3] give the same elements, but are not equal
    low, high = (np.full(shape, document[bound], dtype) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _compact(bound: NDArray[Any]) -> Any:
    """One number where all are equal: images have many."""
    values = bound.ravel().tolist()
    return values[0] if len(set(values)) == 1 else bound.tolist()
