"""Gymnasium environments: single ones by name, many in this process, and Gymnasium's vectorized classes."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from proxrl.common.imports import import_attribute
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.envs.api import WHOLE_EPISODE, Autoreset, EpisodeTracker, env_kwargs_hint, episode_seed
from proxrl.envs.buffers import Buffers, cast_obs, stored_space, write_row
from proxrl.envs.info import Info, VectorInfo, as_number, number_names, read_numbers, success_of
from proxrl.envs.interface import Problem, explain_failure, not_an_env, observation_problems, require_spaces, returned_problems
from proxrl.envs.mask_wrapper import with_mask
from proxrl.envs.spaces import space_tree
from proxrl.envs.wrapping import Wrapping
from proxrl.errors import ProxRLError, describe, one_line
from proxrl.types import Episode, Step, Tree

T = TypeVar("T")

# If making an environment takes longer, no further one is made only to look at it.
PROBE_SECONDS = 0.5

# --- single environments -------------------------------------------------------------------------------------------------


def find_callable(env: str) -> Callable[..., Any] | None:
    """Return the callable named by `module:callable`, or None for `module:id` with an id that the module registers."""
    attribute = import_attribute(env)
    if callable(attribute):
        return attribute  # type: ignore[no-any-return]
    module_name, _, name = env.partition(":")
    if name in gymnasium.registry:
        return None
    raise ProxRLError(f"{env}: module {module_name!r} has no callable {name!r} and registers no such Gymnasium id")


def make_env(
    env: str | EnvSpec | Callable[..., Any],
    kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
    action_mask: str = "off",
    wrapping: Wrapping | None = None,
) -> gymnasium.Env:
    """Make one environment from a Gymnasium id, `module:callable`, or a callable that returns it.

    `max_episode_steps` replaces the time limit that its id has; like the lengths of episodes, it counts repeated actions once.
    `action_mask` is a value of --action-mask, which decides whether masks are added to the observations.
    """
    wrapping = wrapping or Wrapping()
    limit = None if max_episode_steps is None else max_episode_steps * wrapping.action_repeat
    kwargs = kwargs or {}
    name = env if isinstance(env, str) else getattr(env, "id", None) or getattr(env, "__name__", repr(env))
    if isinstance(env, str) and ":" in env:
        env = find_callable(env) or env
    try:
        with warnings.catch_warnings(), _quiet_mujoco(env):
            warnings.filterwarnings("ignore", module=r"gymnasium\.")  # such as "out of date" for v4 tasks
            made = _make(env, kwargs, limit)
    except Exception as error:
        raise ProxRLError(f"can't make {name}: {one_line(error)}{env_kwargs_hint(kwargs)}") from error
    if not isinstance(made, gymnasium.Env):
        raise not_an_env(name, made)
    return with_mask(wrapping.apply(made), action_mask)


def _make(env: str | EnvSpec | Callable[..., Any], kwargs: dict[str, Any], max_episode_steps: int | None) -> Any:
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    if not callable(env):
        return gymnasium.make(env, disable_env_checker=True, **limit, **kwargs)
    made = env(**kwargs)
    return gymnasium.wrappers.TimeLimit(made, **limit) if limit and isinstance(made, gymnasium.Env) else made


@contextlib.contextmanager
def _quiet_mujoco(env: Any) -> Iterator[None]:
    """Suppress the warning that MuJoCo 4 prints, and writes to a log file in the current folder, for Gymnasium's models."""
    spec = gymnasium.registry.get(env) if isinstance(env, str) else env
    if not str(getattr(spec, "entry_point", "")).startswith("gymnasium.envs.mujoco"):
        yield
        return
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


# --- many environments ----------------------------------------------------------------------------------------------------


class FailedEnvError(ProxRLError):
    """An environment failed in `reset` or `step`, and the message says which one."""


class InProcessEnvs:
    """A loop over environments in this process, which resets each one in the step that ended its episode."""

    autoreset = Autoreset.SAME_STEP

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], first_env: int = 0, frame_stack: int = 1) -> None:
        self.frame_stack = frame_stack
        self._envs: list[gymnasium.Env] = []
        self._make_another, self._seconds_to_make = makers[0], math.inf
        try:
            for maker in makers:
                started = time.perf_counter()
                self._envs.append(maker())
                # The shortest time, because the first one may include imports.
                self._seconds_to_make = min(self._seconds_to_make, time.perf_counter() - started)
            require_spaces(self._envs[0])
            self.observation_space = stored_space(self._envs[0].observation_space)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(makers)
        self.action_space = self._envs[0].action_space
        self.episode_counts = np.zeros(self.num_envs, np.int64)
        self._first_env = first_env
        self._seed = 0
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self._envs]
        self._one_array = not isinstance(self.observation_space, spaces.Dict | spaces.Tuple)
        self._action_rows = _row_reader(self.action_space)
        self._valid = np.ones(self.num_envs, np.bool_)
        # Lists: adding to an element of a NumPy array takes as long as the rest of the loop.
        self._returns = [0.0] * self.num_envs
        self._step_count = 0
        self._episode_starts = [0] * self.num_envs  # values of _step_count
        self._flags_set = False
        self._info: NDArray[np.float64] | None = None
        self._last_infos: dict[bool, Info] = {}  # of a step that ended an episode, and of one that did not
        self.use_buffers(Buffers.make(self.observation_space, self.num_envs))

    def use_buffers(self, buffers: Buffers) -> None:
        """Write results to these arrays from now on."""
        self._buffers = buffers

    def record_info(self, keys: Sequence[str]) -> None:
        if keys:
            self._info = np.full((self.num_envs, len(keys)), np.nan)
            rows = zip(self._envs, self._info, strict=True)
            self._steps = [_recording(env.step, keys, row, self._last_infos) for env, row in rows]

    def info_names(self) -> list[str]:
        def is_number(info: Info, key: str) -> bool:
            return not np.isnan(as_number(info[key]))

        return list(dict.fromkeys(name for info in self._last_infos.values() for name in number_names(info, is_number)))

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        self._seed = seed
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        self._step_count = 0
        self._clear_flags()
        for n in range(self.num_envs):
            try:
                obs = self._begin(n)
                self._check_obs(n, "reset", obs)
                write_row(self._buffers.obs, n, obs)
            except (Exception, SystemExit) as error:
                raise self._failure(n, "reset", error) from error
        return self._buffers.obs

    def step(self, action: Tree) -> Step:
        buffers, returns, one_array = self._buffers, self._returns, self._one_array
        obs_rows, rewards = buffers.obs, buffers.reward
        ended: list[int] = []
        episodes: list[Episode] = []
        self._step_count += 1
        if self._flags_set:
            self._clear_flags()
        n, returned, first = 0, None, self._step_count == 1
        try:
            for n, (step, row) in enumerate(zip(self._steps, self._action_rows(action), strict=True)):
                returned = None
                returned = step(row)
                obs, reward, terminated, truncated, info = returned
                if first:
                    self._check_obs(n, "step", obs)
                rewards[n] = reward
                returns[n] += float(reward)  # adding a NumPy float32 would make the sum one
                if terminated or truncated:
                    write_row(buffers.final_obs, n, obs)
                    (buffers.terminated if terminated else buffers.truncated)[n] = True
                    episode = info.get(WHOLE_EPISODE, (returns[n], self._step_count - self._episode_starts[n]))
                    if episode is not None:
                        total_reward, length = episode
                        episodes.append(Episode(n, total_reward, length, success=success_of(info)))
                    ended.append(n)
                    obs = self._begin(n)
                if one_array:
                    obs_rows[n] = obs
                else:
                    write_row(obs_rows, n, obs)
        except (Exception, SystemExit) as error:
            raise self._failure(n, "step", error, returned) from error
        final_obs = None
        if ended:
            self._flags_set = True
            final_obs = tree_map(lambda array: array[ended], buffers.final_obs)
        return Step(obs_rows, rewards, buffers.terminated, buffers.truncated, self._valid, final_obs, episodes, self._info)

    def probe(self, function: Callable[[gymnasium.Env], T]) -> T | None:
        """Return what `function` finds out about one more environment; None if making one takes long or is not possible."""
        if self._seconds_to_make > PROBE_SECONDS:
            return None
        try:
            env = self._make_another()
        except (Exception, SystemExit):  # perhaps a resource that only so many environments can share
            return None
        if any(env.unwrapped is used.unwrapped for used in self._envs):
            return None
        try:
            return function(env)
        finally:
            with contextlib.suppress(Exception):
                env.close()

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _begin(self, n: int) -> Tree:
        returned = None
        try:
            returned = self._envs[n].reset(seed=episode_seed(self._seed, self._first_env + n, int(self.episode_counts[n])))
        except (Exception, SystemExit) as error:
            raise self._failure(n, "reset", error) from error
        # An observation of two numbers could be unpacked, too.
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise self._fault(n, next(returned_problems("reset", returned, self.observation_space)))
        obs, _ = returned
        self.episode_counts[n] += 1
        self._returns[n] = 0.0
        self._episode_starts[n] = self._step_count
        return obs

    def _clear_flags(self) -> None:
        self._buffers.terminated.fill(False)
        self._buffers.truncated.fill(False)
        self._flags_set = False

    def _check_obs(self, n: int, call: str, obs: Tree) -> None:
        """Raise an error if the observation does not fit its space: NumPy would silently broadcast a smaller one."""
        for problem in observation_problems(call, obs, self.observation_space):
            raise self._fault(n, problem)

    def _failure(self, n: int, call: str, error: BaseException, returned: Any = None) -> ProxRLError:
        """Return the error of an environment that failed: what is wrong with it, if that is known, or its own message."""
        if isinstance(error, FailedEnvError):
            return error
        problem = explain_failure(call, error, returned, self.observation_space)
        if problem is not None:
            return self._fault(n, problem)
        return FailedEnvError(f"environment {self._first_env + n} failed in {call}: {describe(error)}")

    def _fault(self, n: int, problem: Problem) -> ProxRLError:
        return FailedEnvError(f"environment {self._first_env + n}: {problem}")


def _recording(
    env_step: Callable[[Any], Any], keys: Sequence[str], row: NDArray[np.float64], last_infos: dict[bool, Info]
) -> Callable[[Any], Any]:
    """Return `step` of an environment, which also writes the numbers of these keys of its info to `row` [K].

    A function without the pool: it would hold itself in memory by it, and some libraries complain about what is left at exit.
    """

    def step(action: Any) -> Any:
        result = env_step(action)
        _, _, terminated, truncated, info = result
        last_infos[bool(terminated or truncated)] = info
        row[:] = read_numbers(info, keys)
        return result

    return step


def _row_reader(space: gymnasium.Space) -> Callable[[Tree], Sequence[Any]]:
    """Return a function that splits actions [N, ...] into one action for each environment."""
    if isinstance(space, spaces.Discrete):
        return lambda action: action  # its elements are NumPy's integers, as `space.sample()` returns them
    if isinstance(space, spaces.Dict | spaces.Tuple):
        tree = space_tree(space)
        return lambda action: [
            tree_map(lambda leaf, rows, n=n: _row(leaf, rows, n), tree, action) for n in range(len(next(tree_leaves(action))))
        ]
    return lambda action: [_row(space, action, n) for n in range(len(action))] if space.shape == () else action


def _row(space: gymnasium.Space, rows: NDArray[Any], n: int) -> Any:
    """Return row n as what `space.sample()` returns: a number for a Discrete, otherwise an array, even one of shape ()."""
    return rows[n] if isinstance(space, spaces.Discrete) else rows[n, ...]


class NativeVectorEnvs(VectorInfo):
    """Adapter for Gymnasium's vectorized classes, which step all environments by array operations."""

    frame_stack = 1

    def __init__(self, envs: VectorEnv, first_env: int = 0) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            envs.close()
            raise ProxRLError(f"the vectorized class has autoreset_mode {mode}, which is not supported; use --vector inprocess")
        self.autoreset = Autoreset.NEXT_STEP if mode is AutoresetMode.NEXT_STEP else Autoreset.SAME_STEP
        self.num_envs = envs.num_envs
        self.observation_space = stored_space(envs.single_observation_space)
        self.action_space = envs.single_action_space
        self.episode_counts = np.zeros(self.num_envs, np.int64)
        self._envs = envs
        self._first_env = first_env
        self._tracker = EpisodeTracker(self.num_envs)
        self._ended = np.zeros(self.num_envs, np.bool_)

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        # All environments share one generator, so its seed follows from the number of episodes that all of them have begun.
        obs, _ = self._envs.reset(seed=episode_seed(seed, self._first_env, int(self.episode_counts.sum())))
        self.episode_counts += 1
        self._tracker.reset()
        self._ended = np.zeros(self.num_envs, np.bool_)
        return cast_obs(obs, self.observation_space)

    def step(self, action: Tree) -> Step:
        try:
            obs, rewards, terminated, truncated, info = self._envs.step(action)
        except Exception as error:
            raise ProxRLError(f"the vectorized environments failed in step: {one_line(error)}") from error
        terminated = np.asarray(terminated)
        truncated = np.asarray(truncated) & ~terminated
        ended = terminated | truncated
        final_obs, final_info = None, info
        valid = ~self._ended
        if self.autoreset is Autoreset.NEXT_STEP:
            self.episode_counts += self._ended
            self._ended = ended
        else:
            self.episode_counts += ended
            if ended.any():
                final_obs = self._final_obs(info["final_obs"], ended)
                final_info = info.get("final_info", {})  # `info` is that of the reset
        episodes = self._tracker.step(np.asarray(rewards), valid, ended, final_info)
        reward = np.asarray(rewards, np.float32)
        numbers = self._read_info(info, ended if final_obs is not None else None, final_info)
        return Step(cast_obs(obs, self.observation_space), reward, terminated, truncated, valid, final_obs, episodes, numbers)

    def close(self) -> None:
        self._envs.close()

    def _final_obs(self, final_obs: Any, ended: NDArray[np.bool_]) -> Tree:
        # One observation per environment, None for those whose episode continues; or one array for all of them.
        if isinstance(final_obs, np.ndarray) and final_obs.dtype == object:
            return cast_obs(tree_map(lambda *rows: np.stack(rows), *final_obs[ended]), self.observation_space)
        return cast_obs(tree_map(lambda array: np.asarray(array)[ended], final_obs), self.observation_space)


def make_native(
    env: str, num_envs: int, kwargs: dict[str, Any] | None = None, first_env: int = 0, max_episode_steps: int | None = None
) -> NativeVectorEnvs:
    """Make environments by the vectorized class that is registered for this id."""
    kwargs = dict(kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"gymnasium\.")
            envs = gymnasium.make_vec(env, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except Exception as error:
        raise ProxRLError(f"can't make the vectorized class of {env}: {one_line(error)}; use --vector inprocess") from error
    return NativeVectorEnvs(envs, first_env)
