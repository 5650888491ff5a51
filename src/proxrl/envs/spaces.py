"""Gymnasium's spaces: which ones are supported, how elements are checked, and spaces as trees of leaves and as JSON.

Checkpoints contain spaces as JSON, so that a policy can be rebuilt without making an environment.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_map
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Tree

# Arrays of bytes with smaller sides are treated as numbers, not as images.
SMALLEST_IMAGE = 7

# Numbers in a space that is read from a checkpoint.
LARGEST_BOX = 10**8
# Numbers of channels that are no surprise: gray, color, with transparency, or a few gray frames.
USUAL_CHANNELS = range(1, 5)

LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

_ALTERNATIVES = {
    "Graph": "a Dict of Boxes, padded to the largest number of nodes and edges",
    "Text": "a MultiDiscrete of character codes, padded to the longest text",
    "Sequence": "a Box or MultiDiscrete padded to the longest sequence, with its length beside it",
    "OneOf": "a Tuple of a Discrete, which selects the alternative, and all alternatives",
}


class Masked(spaces.Dict):
    """Observations with their action masks: one bit for every choice of every discrete part of the action.

    Environments give their mask in `info` or under a key of the observation; their adapter moves it here.
    """

    def __init__(self, observation: gymnasium.Space, choices: int) -> None:
        super().__init__({"observation": observation, "action_mask": spaces.MultiBinary(choices)})

    @property
    def choices(self) -> int:
        """The number of bits in a mask."""
        return int(self["action_mask"].shape[0])  # type: ignore[index]  # a MultiBinary always has a shape


def refuse(space: gymnasium.Space) -> ProxRLError:
    """Return the error for a space that is not supported, with a supported alternative."""
    kind = type(space).__name__
    alternative = _ALTERNATIVES.get(kind, "a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these")
    return ProxRLError(f"{kind} spaces have no fixed size, which networks need; wrap the environment so that it is {alternative}")


def space_tree(space: gymnasium.Space) -> Tree:
    """Return nested spaces as a tree whose leaves are spaces other than Dict and Tuple."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(value) for key, value in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(value) for value in space)
    if not isinstance(space, LEAVES):
        raise refuse(space)
    return space


def is_image(space: gymnasium.Space) -> bool:
    """Return whether a space holds images: bytes in three dimensions, two of which are large."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and sorted(space.shape)[1] >= SMALLEST_IMAGE
    )


def channels_last(shape: tuple[int, ...], image_channels: str) -> bool:
    """Return whether the last axis of an image holds its channels; "auto" takes the smaller one of the first and the last."""
    return shape[2] < shape[0] if image_channels == "auto" else image_channels == "last"


def channels_assumption(shape: tuple[int, ...], image_channels: str = "auto") -> str | None:
    """Return what "auto" assumes about the axes of an image, if that may be wrong."""
    last = channels_last(shape, image_channels)
    height, width, count = shape if last else (*shape[1:], shape[0])
    if image_channels != "auto" or height == width != count or count in USUAL_CHANNELS:
        return None
    position, other = ("last", "first") if last else ("first", "last")
    return (
        f"Images of shape {' x '.join(map(str, shape))} are taken for {height} x {width} pixels with {count} channels"
        f" ({position} axis); if that is wrong, use --image-channels {other}"
    )


def choices(space: gymnasium.Space) -> int:
    """Return the number of mask bits for a leaf of an action space: one per choice, two (0, 1) per bit of a MultiBinary."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return 2 * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else 0


def wrong_values(space: gymnasium.Space | None, array: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return where values are not finite or out of range, or None if all are valid."""
    if np.issubdtype(array.dtype, np.floating):
        wrong = ~np.isfinite(array)
    elif isinstance(space, spaces.Discrete):
        wrong = (array < space.start) | (array >= space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        wrong = (array < space.start) | (array >= space.start + space.nvec)
    else:
        return None
    return wrong if wrong.any() else None


def map_observation(function: Callable[[gymnasium.Space, Any], Any], space: gymnasium.Space, obs: Tree) -> Tree:
    """Apply `function(leaf_space, value)` to every leaf of an observation.

    Raises a `ProxRLError` if the observation does not have the structure of its space.
    """
    try:
        return tree_map(function, space_tree(space), obs)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        kind = type(obs).__name__
        raise ProxRLError(f"the observation, a {kind}, does not have the structure of {space} ({one_line(error)})") from None


class HasSpaces(Protocol):
    """Environments, or anything else with an observation and an action space."""

    @property
    def observation_space(self) -> gymnasium.Space: ...
    @property
    def action_space(self) -> gymnasium.Space: ...


def space_difference(environments: HasSpaces, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> str | None:
    """Return how the spaces of `environments` differ from those that a policy was trained with, or None if they fit.

    The text is a clause that can be part of an error message.
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
    """Return a space as a JSON document; `space_from_json` is the inverse."""
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
    """Return the space that `space_to_json` described."""
    dtype, shape = np.dtype(document.get("dtype", "float32")), tuple(document.get("shape", ()))
    if math.prod(shape) > LARGEST_BOX:  # the checkpoint may be anybody's
        raise ProxRLError(f"the checkpoint has observations or actions of shape {shape}, which are too large to act on")
    match document["kind"]:
        case "masked":
            return Masked(space_from_json(document["observation"]), document["choices"])
        case "dict":
            return spaces.Dict([(key, space_from_json(part)) for key, part in document["parts"]])
        case "tuple":
            return spaces.Tuple([space_from_json(part) for part in document["parts"]])
        case "discrete":
            kind = {} if dtype == np.int64 else {"dtype": dtype.type}  # older versions of Gymnasium have no `dtype` here
            return spaces.Discrete(document["n"], start=document["start"], **kind)
        case "multidiscrete":
            return spaces.MultiDiscrete(document["nvec"], dtype=dtype.type, start=document["start"])
        case "multibinary":
            return spaces.MultiBinary(document["n"])  # the spaces for 3 and [3] have the same elements but are not equal
    low, high = (np.full(shape, document[bound], dtype) for bound in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _compact(bound: NDArray[Any]) -> Any:
    """Return one number if all are equal, to keep images short."""
    values = bound.ravel().tolist()
    return values[0] if len(set(values)) == 1 else bound.tolist()
