"""`CheckedEnv`: an environment whose `reset` and `step` check everything that they return and report what is wrong."""

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

from proxrl.check.findings import CheckReport
from proxrl.check.masked_play import Masks
from proxrl.envs.interface import is_number, observation_problems, returned_problems
from proxrl.envs.leaves import describe_value, leaves_of
from proxrl.envs.masks import flatten_mask
from proxrl.errors import one_line


class StopCheck(Exception):  # noqa: N818 - ends the check, is not an error of it
    """Raised after a finding that makes further checks impossible."""


class Transition(NamedTuple):
    """What `step` returned, without its info."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class CheckedEnv:
    """Calls `reset` and `step` as PPO does. `seconds` records the duration of the calls, without that of the checks."""

    def __init__(self, make: Callable[[], gymnasium.Env], report: CheckReport, debug: bool) -> None:
        self._make, self._report, self._debug = make, report, debug
        self.env = make()
        self.has_masks = False
        self.observation: Any = None  # the last one, without its mask
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}
        self._last_and_copy: tuple[Any, Any] = (None, None)  # the last observation, and a copy made when it was returned

    @cached_property
    def masks(self) -> Masks:
        """Created on first use, after the spaces have been checked. A reopened environment has the same masks."""
        return Masks(self.env)

    def reopen(self) -> None:
        """Close the environment, then make it again: a simulator may hold a port."""
        self.close()
        self.env, self._last_and_copy = self._make(), (None, None)

    def close(self) -> None:
        """Close the environment twice, as nested wrappers may do."""
        try:
            self.env.close()
            self.env.close()
        except (Exception, SystemExit) as error:
            self._print_traceback(error)
            self._report.add("close", f"close raised {one_line(error)}")

    def reset(self, seed: int) -> Any:
        """Reset the environment, check what it returns, and return the observation."""
        returned = self._call("reset", seed=seed)
        self._check_returned("reset", returned)
        self.masks.restart()
        self._check_mask("reset", self._check_observation("reset", *returned))
        return returned[0]

    def step(self, action: Any) -> Transition:
        """Take a step, with choices that the mask forbids replaced, and check what it returns."""
        returned = self._call("step", self.masks.replace_forbidden(action))
        self._check_returned("step", returned)
        obs, reward, terminated, truncated, info = returned
        self._check_ending("terminated", terminated)
        self._check_ending("truncated", truncated)
        mask = self._check_observation("step", obs, info)
        transition = Transition(obs, self._check_reward(reward), bool(terminated), bool(truncated))
        if not transition.ended:
            self._check_mask("step", mask)  # no action follows the last step, so its mask does not matter
        return transition

    def _check_returned(self, call: str, returned: Any) -> None:
        """Stop if the number of values is wrong; the values themselves are checked one by one."""
        problem = next(returned_problems(call, returned, self.masks.observation_space), None)
        if problem is not None and problem.code == f"{call}-returns":
            self._stop(*problem)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            returned = getattr(self.env, name)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            self._print_traceback(error)
            takes_no_seed = name == "reset" and isinstance(error, TypeError) and "'seed'" in str(error)
            self._stop("reset-seed" if takes_no_seed else "raises", f"{name} raised {one_line(error)}")
        self.seconds[name].append(time.perf_counter() - start)
        if not data_equivalence(*self._last_and_copy, exact=True):
            self._report.add("observation-reused", f"{name} changes the observation that the call before it returned")
        return returned

    def _print_traceback(self, error: BaseException) -> None:
        if self._debug:
            traceback.print_exception(error)

    def _stop(self, code: str, what: str) -> NoReturn:
        """Report a finding and end the check."""
        self._report.add(code, what)
        raise StopCheck

    def _check_ending(self, name: str, value: Any) -> None:
        if isinstance(value, bool | np.bool_):
            return
        # 0 and 1 happen to work; an array, None or a string does not.
        works = isinstance(value, int | np.integer) and value in (0, 1)
        self._report.add("ending-type", f"{name} is {describe_value(value)}, not a bool", "warning" if works else "error")
        if not works:
            raise StopCheck

    def _check_reward(self, reward: Any) -> float:
        """Return the reward as a Python float."""
        if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "biuf":
            self._report.add("reward-array", f"the reward is an array of shape {reward.shape}, not a number")
            reward = reward.item()
        if not is_number(reward):
            self._stop("reward-type", f"the reward is {describe_value(reward)}, not a number")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(reward)):
                self._stop("reward-not-finite", f"the reward is {reward} (rewards are stored in 32 bits)")
        return float(reward)

    def _check_observation(self, call: str, obs: Any, info: dict[str, Any]) -> Any:
        """Check the observation without its mask, and return the mask."""
        try:
            self.observation, mask = self.masks.split(obs, info)
        except TypeError as error:
            self._stop("observation-structure", f"{call} returns another structure than observation_space: observation{error}")
        for problem in observation_problems(call, self.observation, self.masks.observation_space):
            self._stop(*problem)
        leaves = list(leaves_of(self.masks.observation_space, self.observation))
        for path, space, value in leaves:
            self._check_leaf(f"observation{path} returned by {call}", space, value)
        self._last_and_copy = (obs, deepcopy(obs))
        return mask

    def _check_leaf(self, label: str, space: gymnasium.Space, value: Any) -> None:
        array = np.asarray(value)
        if not np.isfinite(array).all():
            self._stop("observation-not-finite", f"{label} contains {array[~np.isfinite(array)].flat[0]}")
        # Discrete spaces take any integer, also a Python int, which has no dtype.
        is_category = not isinstance(space, spaces.Box) and array.dtype.kind in "biu"
        if not is_category and (array.dtype != space.dtype or not isinstance(value, np.ndarray | np.generic)):
            only_rounded = array.dtype.kind == "f" and space.dtype is not None and space.dtype.kind == "f"
            kind = f"{array.dtype}" if isinstance(value, np.ndarray | np.generic) else describe_value(value)
            what = f"{label} is {kind}, but the dtype of its space is {space.dtype}"
            self._report.add("observation-dtype", what, "note" if only_rounded else None)
        if not _is_inside(space, array):
            level = "error" if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None  # used as an index
            self._report.add("observation-outside", f"{label} has values outside {space}", level)

    def _check_mask(self, call: str, mask: Any) -> None:
        """Check a mask.

        Training looks for masks in the observation space and in what the first reset returns; if it finds one, it needs one for
        every action.
        """
        masks = self.masks
        masks.bits = None
        if masks.expected is None:
            masks.expected = mask is not None
        if mask is None:
            if masks.expected:
                self._stop("mask-missing", f"{call} returns no {masks.location}, although the episode continues")
            return
        self.has_masks = True
        if not masks.expected:
            # Training would ignore the masks. The check obeys them, because a forbidden action could end it early.
            self._report.add("mask-missing", f"{call} returns {masks.location}, but the first reset returned none", "warning")
        try:
            masks.bits = flatten_mask(masks.action_space, mask)
        except Exception as error:  # a mask with another structure may raise anything
            reason = str(error) if isinstance(error, ValueError) else one_line(error)
            self._stop("mask-shape", f"{masks.location} returned by {call} does not fit {masks.action_space}: {reason}")
        empty = masks.empty_part()
        if empty is not None:
            self._stop("mask-empty", f"{masks.location} returned by {call} allows no choice for action{empty}")


def _is_inside(space: gymnasium.Space, array: NDArray[Any]) -> bool:
    """Compare the numbers alone. `space.contains` also checks the dtype, which is a finding of its own."""
    if isinstance(space, spaces.Box):
        return bool(((array >= space.low) & (array <= space.high)).all())
    if isinstance(space, spaces.MultiBinary):
        return bool(((array == 0) | (array == 1)).all())
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    index = array.astype(np.float64) - space.start  # narrow types would wrap around
    return bool(((index >= 0) & (index < (space.n if isinstance(space, spaces.Discrete) else space.nvec))).all())
