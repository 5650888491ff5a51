"""What a single environment must have and return. If it does not, `train` and `check` explain it with the texts in this file."""

import re
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from proxrl.envs.leaves import describe_structure, describe_value, leaves_of
from proxrl.errors import ProxRLError

# code → (effect on PPO, fix), for the findings of `proxrl check` that can stop training.
EXPLANATIONS: dict[str, tuple[str, str]] = {
    "space-missing": (
        "training can't start, because the networks are built from both spaces",
        "set self.observation_space and self.action_space in __init__",
    ),
    "reset-returns": ("the first observation can't be read", "return (observation, info), where info is a dict"),
    "reset-seed": (
        "training can't start, because it seeds each environment with reset(seed=...)",
        "define reset(self, *, seed=None, options=None) and call super().reset(seed=seed) in it",
    ),
    "step-returns": (
        "the observation, reward and endings can't be told apart",
        "return (observation, reward, terminated, truncated, info)",
    ),
    "ending-type": (
        "the end of an episode may be missed, or seen at every step, which makes the advantages around it wrong",
        "return terminated and truncated as bool",
    ),
    "observation-structure": (
        "the observation can't be stored in the rollout",
        "return an observation with the structure of observation_space",
    ),
    "observation-shape": (
        "NumPy broadcasts the array when it is stored in the rollout, or raises an error",
        "give the array and its space the same shape",
    ),
    "reward-type": ("the rewards can't be summed to a return", "return one real number, such as float(reward)"),
}

# In these packages, an error while unpacking comes from what the environment has returned, not from a fault of its own code.
_CALLERS = ("proxrl.", "gymnasium.")


class Problem(NamedTuple):
    """What is wrong with an environment; `code` is a key of `EXPLANATIONS`."""

    code: str
    what: str

    def __str__(self) -> str:
        effect, fix = EXPLANATIONS[self.code]
        return f"{self.what} [{self.code}]: {effect}; to fix it, {fix} ('proxrl check' finds more)"


def missing_space(env: Any) -> Problem | None:
    """Return a problem if one of the two spaces is not there."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            kind = f"{name} is {describe_value(space)}, not a gymnasium.Space" if hasattr(env, name) else f"there is no {name}"
            return Problem("space-missing", kind)
    return None


def require_spaces(env: gymnasium.Env) -> None:
    """Raise a `ProxRLError` if the environment lacks a space."""
    problem = missing_space(env)
    if problem is not None:
        raise ProxRLError(f"{type(env.unwrapped).__name__}: {problem}")


def not_an_env(name: object, made: Any) -> ProxRLError:
    """Return the error for a callable that returned something else than an environment."""
    kind, package = type(made).__name__, type(made).__module__.partition(".")[0]
    if made is None:
        return ProxRLError(f"{name} returned None, but must return a gymnasium.Env; does it lack a return statement?")
    if isinstance(made, type):
        return ProxRLError(f"{name} returned the class {made.__name__}, but must return a gymnasium.Env: {made.__name__}(...)")
    if isinstance(made, gymnasium.vector.VectorEnv):
        advice = "for a VectorEnv, use --vector native"
    elif package == "gym":
        advice = "it is an environment of the old gym package; write 'import gymnasium as gym', and see docs/check.md"
    elif callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None)):
        advice = f"derive the class {kind} from it"
    else:
        advice = "return the environment itself"
    return ProxRLError(f"{name} returned {kind}, but must return a gymnasium.Env; {advice}")


def returned_problems(call: str, returned: Any, space: gymnasium.Space) -> Iterator[Problem]:
    """Yield what is wrong with the value that `reset` or `step` returned, most important first."""
    size = 2 if call == "reset" else 5
    if not (isinstance(returned, tuple) and len(returned) == size and isinstance(returned[-1], dict)):
        old = isinstance(returned, tuple) and call == "step" and len(returned) == 4
        hint = ", as in the old gym API, which has one flag for both endings" if old else ""
        yield Problem(f"{call}-returns", f"{call} returns {describe_structure(returned)}{hint}")
        return
    yield from observation_problems(call, returned[0], space)
    if call == "step":
        if not is_number(returned[1]):
            yield Problem("reward-type", f"the reward is {describe_value(returned[1])}, not a number")
        for name, value in zip(("terminated", "truncated"), returned[2:4], strict=True):
            if isinstance(value, np.ndarray) and value.size != 1:
                yield Problem("ending-type", f"{name} is {describe_value(value)}, not a bool")


def observation_problems(call: str, obs: Any, space: gymnasium.Space) -> Iterator[Problem]:
    """Yield what keeps an observation from being stored."""
    try:
        leaves = list(leaves_of(space, obs))
    except TypeError as error:
        what = f"{call} returns another structure than observation_space: observation{error}"
        yield Problem("observation-structure", what)
        return
    for path, leaf, value in leaves:
        label = f"observation{path} returned by {call}"
        try:
            array = np.asarray(value)
        except ValueError:  # a list of lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            yield Problem("observation-structure", f"{label} is {describe_value(value)}, but its space is {leaf}")
        elif array.shape != leaf.shape:
            yield Problem("observation-shape", f"{label} has shape {array.shape}, but its space has shape {leaf.shape}")


def is_number(value: Any) -> bool:
    """Return whether a value is one real number, or an array of one."""
    if isinstance(value, np.ndarray):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def explain_failure(call: str, error: BaseException, returned: Any, space: gymnasium.Space) -> Problem | None:
    """Return what made `reset` or `step` fail, if the cause is what the environment takes or returns.

    `returned` is the value that the call returned, or None if it raised the error itself.
    """
    if returned is not None:
        return next(returned_problems(call, returned, space), None)
    if call == "reset" and isinstance(error, TypeError) and "'seed'" in str(error):
        return Problem("reset-seed", f"reset does not take a seed ({error})")
    # A wrapper has unpacked what the environment returned.
    frames = list(traceback.walk_tb(error.__traceback__))
    raised_in = frames[-1][0] if frames else None
    if raised_in is None or not str(raised_in.f_globals.get("__name__", "")).startswith(_CALLERS):
        return None
    where = raised_in.f_code.co_name
    few, many = r"not enough values to unpack \(expected [25], got (\d+)\)", r"too many values to unpack \(expected ([25])"
    counts = re.match(f"{few}|{many}", str(error))
    if counts is None or where not in ("reset", "step"):
        return None
    number = f"{counts[1]} values" if counts[1] else f"more than {counts[2]} values"
    old = ", as in the old gym API, which has one flag for both endings" if where == "step" and counts[1] == "4" else ""
    return Problem(f"{where}-returns", f"{where} returns {number}{old}")
