"""One environment under observation: every call guarded, every answer looked at, every finding reported."""

import time
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from proxrl.findings import Report
from proxrl.imports import one_line


class StopLooking(Exception):  # noqa: N818 - a way out, not an error
    """What was found leaves nothing to go on with."""


class Moment(NamedTuple):
    obs: Any
    reward: float
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Probe:
    """`reset` and `step` as PPO would call them; `seconds` keeps what the calls themselves took."""

    def __init__(self, make: Callable[[], gymnasium.Env], report: Report, debug: bool) -> None:
        self._make, self._report, self._debug = make, report, debug
        self.env = make()
        self.has_masks = False
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}
        self._mask: Any = None
        self._kept: tuple[Any, Any] = (None, None)  # the last observation, and a copy from when we got it

    def reopen(self) -> None:
        """A new one, after the old one is closed: a simulator may hold a port."""
        self.close()
        self.env, self._kept = self._make(), (None, None)

    def close(self) -> None:
        try:
            self.env.close()
            self.env.close()
        except (Exception, SystemExit) as error:
            self._show(error)
            self._report.add("close", f"close raised {one_line(error)}")

    def reset(self, seed: int) -> Any:
        answer = self._call("reset", seed=seed)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            self._stop("reset-returns", f"reset returns {_shape_of(answer)}")
        self._look_at_observation("reset", answer[0])
        self._look_at_mask(answer)
        return answer[0]

    def step(self, action: Any) -> Moment:
        answer = self._call("step", legal(self.env.action_space, action, self._mask))
        if not (isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], dict)):
            self._stop("step-returns", f"step returns {_shape_of(answer)}")
        obs, reward, terminated, truncated, _ = answer
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                # 0 and 1 work by luck; an array, None or a word does not.
                number = isinstance(value, int | np.integer) and value in (0, 1)
                self._report.add("ending-type", f"{name} is {_name(value)}, not a bool", "warning" if number else "error")
                if not number:
                    raise StopLooking
        self._look_at_observation("step", obs)
        moment = Moment(obs, self._real(reward), bool(terminated), bool(truncated))
        if not moment.ended:
            self._look_at_mask(answer)  # nobody acts after the end, so there the mask may be anything
        return moment

    def _call(self, name: str, *words: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            answer = getattr(self.env, name)(*words, **named)
        except (Exception, SystemExit) as error:
            self._show(error)
            refused = name == "reset" and isinstance(error, TypeError) and "'seed'" in str(error)
            self._stop("reset-seed" if refused else "raises", f"{name} raised {one_line(error)}")
        self.seconds[name].append(time.perf_counter() - begun)
        if not data_equivalence(*self._kept, exact=True):
            self._report.add("observation-reused", f"{name} changes the observation that was returned before it")
        return answer

    def _show(self, error: BaseException) -> None:
        if self._debug:
            traceback.print_exception(error)

    def _stop(self, code: str, what: str) -> NoReturn:
        self._report.add(code, what)
        raise StopLooking

    def _real(self, reward: Any) -> float:
        if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "biuf":
            self._report.add("reward-array", f"the reward is an array of shape {reward.shape}, not a number")
            reward = reward.item()
        if not isinstance(reward, int | float | np.integer | np.floating | np.bool_):
            self._stop("reward-type", f"the reward is {_name(reward)}, not a number")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(reward)):
                self._stop("reward-not-finite", f"the reward is {reward} (rewards are kept in 32 bits)")
        return float(reward)

    def _look_at_observation(self, call: str, obs: Any) -> None:
        try:
            leaves = list(leaves_of(self.env.observation_space, obs))
        except TypeError as error:
            self._stop("observation-structure", f"{call} returns an observation whose {error}")
        for path, space, value in leaves:
            self._look_at_leaf(f"the observation{path} of {call}", space, value)
        self._kept = (obs, deepcopy(obs))

    def _look_at_leaf(self, label: str, space: gymnasium.Space, value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            self._stop("observation-structure", f"{label} is {_name(value)}, but its space is {space}")
        if array.shape != space.shape:
            self._stop("observation-shape", f"{label} has shape {array.shape}, but its space says {space.shape}")
        if not np.isfinite(array).all():
            self._stop("observation-not-finite", f"{label} contains {array[~np.isfinite(array)].flat[0]}")
        whole = isinstance(space, spaces.Discrete) and array.dtype.kind in "iu"  # Python's own int has no dtype to get wrong
        if not whole and (array.dtype != space.dtype or not isinstance(value, np.ndarray | np.generic)):
            rounded = array.dtype.kind == "f" and space.dtype is not None and space.dtype.kind == "f"
            kind = f"{array.dtype}" if isinstance(value, np.ndarray | np.generic) else _name(value)
            what = f"{label} is {kind}, but its space says {space.dtype}"
            self._report.add("observation-dtype", what, "note" if rounded else None)  # only digits are lost
        if isinstance(space, spaces.Box):
            inside = bool(((array >= space.low) & (array <= space.high)).all())
        else:
            inside = space.contains(int(array) if whole else array.astype(space.dtype))
        if not inside:
            level = None if isinstance(space, spaces.Box) else "error"  # it is an index there
            self._report.add("observation-outside", f"{label} has values outside {space}", level)

    def _look_at_mask(self, answer: Any) -> None:
        self._mask, space = mask_of(answer), self.env.action_space
        self.has_masks |= self._mask is not None
        if self._mask is None or not isinstance(space, spaces.Discrete):
            return
        mask = np.asarray(self._mask)
        if mask.shape != (space.n,) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            self._stop("mask-shape", f"the action mask has shape {mask.shape} and dtype {mask.dtype} for {space}")
        if not mask.any():
            self._stop("mask-empty", "an action mask allows nothing")


class Legal(gymnasium.Wrapper):
    """Swaps actions that the mask forbids: Gymnasium's checker knows no masks, and its samples may make the environment raise."""

    mask: Any = None

    def reset(self, **kwargs: Any) -> Any:  # Gymnasium looks for this very name
        answer = self.env.reset(**kwargs)
        self.mask = mask_of(answer)
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(legal(self.action_space, action, self.mask))
        self.mask = mask_of(answer)
        return answer


def legal(space: gymnasium.Space, action: Any, mask: Any) -> Any:
    """The action, or one that the mask allows; always the same one, so that episodes can be replayed."""
    if mask is None or not isinstance(space, spaces.Discrete) or np.shape(mask) != (space.n,):
        return action
    index, allowed = int(action - space.start), np.flatnonzero(mask)
    return action if index in allowed or not len(allowed) else space.start + allowed[index % len(allowed)]


def mask_of(answer: Any) -> Any:
    """From info, or from the key of a Dict observation."""
    obs, info = (answer[0], answer[-1]) if isinstance(answer, tuple) and answer else (None, None)
    given = info.get("action_mask") if isinstance(info, dict) else None
    return obs.get("action_mask") if given is None and isinstance(obs, dict) else given


def leaves_of(space: gymnasium.Space, value: Any, path: str = "") -> Iterator[tuple[str, gymnasium.Space, Any]]:
    """Where each leaf is, its space and its value; a TypeError says where they do not fit together."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.keys():
            raise TypeError(f"part{path or ' at the top'} is {_shape_of(value)}, not a dict with the keys {list(space)}")
        for key, part in space.items():
            yield from leaves_of(part, value[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space):
            raise TypeError(f"part{path or ' at the top'} is {_shape_of(value)}, not a tuple of {len(space)}")
        for index, part in enumerate(space):
            yield from leaves_of(part, value[index], f"{path}[{index}]")
    else:
        yield path, space, value


def _name(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{value!r:.40} of type {type(value).__name__}"


def _shape_of(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    return f"({', '.join(type(part).__name__ for part in value)})" if isinstance(value, tuple) else _name(value)
