"""One environment under observation: every call guarded, every answer looked at, every finding reported."""

import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from numpy.typing import NDArray

from proxrl.check.findings import Report
from proxrl.check.leaves import describe, describe_form, leaves_of
from proxrl.check.masked_play import Masks
from proxrl.envs.masks import flatten_mask
from proxrl.errors import one_line


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
        self.observed: Any = None  # the last observation, without a mask
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}
        self._kept: tuple[Any, Any] = (None, None)  # the last observation, and a copy from when we got it

    @cached_property
    def masks(self) -> Masks:
        """Asked for only once the spaces are known to be sound; those of a reopened environment are the same."""
        return Masks(self.env)

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
            self._stop("reset-returns", f"reset returns {describe_form(answer)}")
        self.masks.restart()
        self._look_at_mask("reset", self._look_at_observation("reset", *answer))
        return answer[0]

    def step(self, action: Any) -> Moment:
        answer = self._call("step", self.masks.legal(action))
        if not (isinstance(answer, tuple) and len(answer) == 5 and isinstance(answer[4], dict)):
            self._stop("step-returns", f"step returns {describe_form(answer)}")
        obs, reward, terminated, truncated, info = answer
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                # 0 and 1 work by luck; an array, None or a word does not.
                number = isinstance(value, int | np.integer) and value in (0, 1)
                self._report.add("ending-type", f"{name} is {describe(value)}, not a bool", "warning" if number else "error")
                if not number:
                    raise StopLooking
        mask = self._look_at_observation("step", obs, info)
        moment = Moment(obs, self._real(reward), bool(terminated), bool(truncated))
        if not moment.ended:
            self._look_at_mask("step", mask)  # nobody acts after the end, so there the mask may be anything
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
            self._stop("reward-type", f"the reward is {describe(reward)}, not a number")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(reward)):
                self._stop("reward-not-finite", f"the reward is {reward} (rewards are kept in 32 bits)")
        return float(reward)

    def _look_at_observation(self, call: str, obs: Any, info: dict[str, Any]) -> Any:
        """Returns the mask, which is no part of what the policy observes."""
        try:
            self.observed, mask = self.masks.split(obs, info)
            leaves = list(leaves_of(self.masks.observation_space, self.observed))
        except TypeError as error:
            self._stop("observation-structure", f"{call} returns an observation whose {error}")
        for path, space, value in leaves:
            self._look_at_leaf(f"the observation{path} of {call}", space, value)
        self._kept = (obs, deepcopy(obs))
        return mask

    def _look_at_leaf(self, label: str, space: gymnasium.Space, value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            self._stop("observation-structure", f"{label} is {describe(value)}, but its space is {space}")
        if array.shape != space.shape:
            self._stop("observation-shape", f"{label} has shape {array.shape}, but its space says {space.shape}")
        if not np.isfinite(array).all():
            self._stop("observation-not-finite", f"{label} contains {array[~np.isfinite(array)].flat[0]}")
        # Any whole number can say which category it is: Python's own have no dtype to get wrong.
        whole = not isinstance(space, spaces.Box) and array.dtype.kind in "biu"
        if not whole and (array.dtype != space.dtype or not isinstance(value, np.ndarray | np.generic)):
            rounded = array.dtype.kind == "f" and space.dtype is not None and space.dtype.kind == "f"
            kind = f"{array.dtype}" if isinstance(value, np.ndarray | np.generic) else describe(value)
            what = f"{label} is {kind}, but its space says {space.dtype}"
            self._report.add("observation-dtype", what, "note" if rounded else None)  # only digits are lost
        if not _is_inside(space, array):
            level = "error" if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None  # it is an index there
            self._report.add("observation-outside", f"{label} has values outside {space}", level)

    def _look_at_mask(self, call: str, given: Any) -> None:
        """Training looks for masks in the space and after the first reset; from then on it wants one whenever it acts."""
        masks = self.masks
        masks.bits = None
        if masks.expected is None:
            masks.expected = given is not None
        if given is None:
            if masks.expected:
                self._stop("mask-missing", f"{call} gives no {masks.place}, though the episode goes on")
            return
        self.has_masks = True
        if not masks.expected:
            # Training would go on without masks; here they are kept to, or the rest might not be seen.
            self._report.add("mask-missing", f"{call} gives {masks.place}, but the first reset gave none", "warning")
        try:
            masks.bits = flatten_mask(masks.action_space, given)
        except Exception as error:  # a mask of another structure fails in ways of its own
            told = str(error) if isinstance(error, ValueError) else one_line(error)
            self._stop("mask-shape", f"{masks.place} of {call} does not fit {masks.action_space}: {told}")
        empty = masks.empty_part()
        if empty is not None:
            self._stop("mask-empty", f"{masks.place} of {call} allows nothing for the action{empty}")


def _is_inside(space: gymnasium.Space, array: NDArray[Any]) -> bool:
    """By the numbers alone: `contains` also minds their type, which is another finding."""
    if isinstance(space, spaces.Box):
        return bool(((array >= space.low) & (array <= space.high)).all())
    if isinstance(space, spaces.MultiBinary):
        return bool(((array == 0) | (array == 1)).all())
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    index = array.astype(np.float64) - space.start  # narrow types would wrap around
    return bool(((index >= 0) & (index < (space.n if isinstance(space, spaces.Discrete) else space.nvec))).all())
