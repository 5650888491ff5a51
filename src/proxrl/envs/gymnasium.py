"""Gymnasium environments: one at a time from a name, many in this process, and Gymnasium's own vectorised classes."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from proxrl.common.imports import import_attribute
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.envs.api import WHOLE_EPISODE, Autoreset, EpisodeTracker, episode_seed
from proxrl.envs.buffers import Buffers, cast_obs, stored_space, write_row
from proxrl.envs.masked import with_mask
from proxrl.envs.spaces import space_tree
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Episode, Step, Tree

# --- one environment from a name ------------------------------------------------------------------------------------------


def find_callable(env: str) -> Callable[..., Any] | None:
    """What `module:callable` names; None where the part after the colon is an id that the module registers with Gymnasium."""
    found = import_attribute(env)
    if callable(found):
        return found  # type: ignore[no-any-return]
    module_name, _, attribute = env.partition(":")
    if attribute in gymnasium.registry:
        return None
    raise ProxRLError(f"{env}: module {module_name!r} has no callable {attribute!r} and registers no such Gymnasium id")


def make_env(
    env: str | EnvSpec | Callable[..., Any],
    kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
    action_mask: str = "off",
) -> gymnasium.Env:
    """One environment from a Gymnasium id, `module:callable`, or a callable that returns it; with its mask, where it has one and
    `action_mask` says so, and with a time limit, which takes the place of one that its id has.
    """
    kwargs = kwargs or {}
    name = env if isinstance(env, str) else getattr(env, "id", None) or getattr(env, "__name__", repr(env))
    if isinstance(env, str) and ":" in env:
        env = find_callable(env) or env
    try:
        with warnings.catch_warnings(), _quiet_mujoco(env):
            warnings.filterwarnings("ignore", module=r"gymnasium\.")  # "out of date" for v4 tasks, which are asked for by name
            made = _made(env, kwargs, max_episode_steps)
    except Exception as error:
        told = f"; check --env-kwargs {' '.join(f'{key}={value}' for key, value in kwargs.items())}" if kwargs else ""
        raise ProxRLError(f"can't make {name}: {one_line(error)}{told}") from error
    if not isinstance(made, gymnasium.Env):
        raise ProxRLError(f"{name} returned {type(made).__name__}, but must return a gymnasium.Env")
    return with_mask(made, action_mask)


def _made(env: str | EnvSpec | Callable[..., Any], kwargs: dict[str, Any], max_episode_steps: int | None) -> Any:
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    if not callable(env):
        return gymnasium.make(env, disable_env_checker=True, **limit, **kwargs)
    made = env(**kwargs)
    return gymnasium.wrappers.TimeLimit(made, **limit) if limit and isinstance(made, gymnasium.Env) else made


@contextlib.contextmanager
def _quiet_mujoco(env: Any) -> Iterator[None]:
    """MuJoCo 4 prints a deprecation for Gymnasium's own models and leaves a log file in the current folder at each make."""
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


class InProcessEnvs:
    """A plain loop over environments in this process; each ended one begins its next episode in the same step."""

    autoreset = Autoreset.SAME_STEP

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], first_env: int = 0, frame_stack: int = 1) -> None:
        self.frame_stack = frame_stack
        self._envs: list[gymnasium.Env] = []
        try:
            for maker in makers:
                self._envs.append(maker())
            self.observation_space = stored_space(self._envs[0].observation_space)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(makers)
        self.action_space = self._envs[0].action_space
        self.episode_counts = np.zeros(self.num_envs, np.int64)
        self._first_env = first_env
        self._seed = 0
        self._steps = [env.step for env in self._envs]
        self._one_array = not isinstance(self.observation_space, spaces.Dict | spaces.Tuple)
        self._action_rows = _row_reader(self.action_space)
        self._valid = np.ones(self.num_envs, np.bool_)
        # Plain numbers: adding to an element of a numpy array costs as much as the rest of the loop.
        self._totals = [0.0] * self.num_envs
        self._clock = 0
        self._begun_at = [0] * self.num_envs
        self._flags_set = False
        self.use_buffers(Buffers.make(self.observation_space, self.num_envs))

    def use_buffers(self, buffers: Buffers) -> None:
        """Leave results there from now on."""
        self._buffers = buffers

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        self._seed = seed
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        self._clock = 0
        self._clear_flags()
        for n in range(self.num_envs):
            try:
                obs = self._begin(n)
                self._check_shape(obs)
                write_row(self._buffers.obs, n, obs)
            except (Exception, SystemExit) as error:
                raise self._failure(n, "reset", error) from error
        return self._buffers.obs

    def step(self, action: Tree) -> Step:
        buffers, totals, one_array = self._buffers, self._totals, self._one_array
        obs_rows, rewards = buffers.obs, buffers.reward
        ended: list[int] = []
        episodes: list[Episode] = []
        self._clock += 1
        if self._flags_set:
            self._clear_flags()
        n = 0
        try:
            for n, (step, row) in enumerate(zip(self._steps, self._action_rows(action), strict=True)):
                obs, reward, terminated, truncated, info = step(row)
                rewards[n] = reward
                totals[n] += float(reward)  # a numpy float32 would turn the total into one
                if terminated or truncated:
                    write_row(buffers.final_obs, n, obs)
                    (buffers.terminated if terminated else buffers.truncated)[n] = True
                    whole = info.get(WHOLE_EPISODE, (totals[n], self._clock - self._begun_at[n]))
                    if whole is not None:
                        episodes.append(Episode(n, *whole))
                    ended.append(n)
                    obs = self._begin(n)
                if one_array:
                    obs_rows[n] = obs
                else:
                    write_row(obs_rows, n, obs)
        except (Exception, SystemExit) as error:
            raise self._failure(n, "step", error) from error
        final_obs = None
        if ended:
            self._flags_set = True
            final_obs = tree_map(lambda array: array[ended], buffers.final_obs)
        return Step(obs_rows, rewards, buffers.terminated, buffers.truncated, self._valid, final_obs, episodes)

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _begin(self, n: int) -> Tree:
        obs, _ = self._envs[n].reset(seed=episode_seed(self._seed, self._first_env + n, int(self.episode_counts[n])))
        self.episode_counts[n] += 1
        self._totals[n] = 0.0
        self._begun_at[n] = self._clock
        return obs

    def _clear_flags(self) -> None:
        self._buffers.terminated.fill(False)
        self._buffers.truncated.fill(False)
        self._flags_set = False

    def _check_shape(self, obs: Tree) -> None:
        """Once per run, since numpy would stretch a smaller observation over its row without a word."""

        def check(leaf: gymnasium.Space, value: Any) -> None:
            if np.shape(value) != leaf.shape:
                raise ValueError(f"the observation has shape {np.shape(value)}, but its space says {leaf.shape}")

        try:
            tree_map(check, space_tree(self.observation_space), obs)
        except (TypeError, KeyError, IndexError):
            form = type(obs).__name__
            raise ValueError(f"the observation, a {form}, does not have the form {self.observation_space}") from None

    def _failure(self, n: int, call: str, error: BaseException) -> ProxRLError:
        return ProxRLError(f"environment {self._first_env + n} failed in {call}: {one_line(error)}")


def _row_reader(space: gymnasium.Space) -> Callable[[Tree], Sequence[Any]]:
    """A function from actions [N, ...] to one action for each environment."""
    if isinstance(space, spaces.Discrete):
        return lambda action: action.tolist()  # plain numbers: array elements are slow to use
    if isinstance(space, spaces.Dict | spaces.Tuple):
        tree = space_tree(space)
        return lambda action: [
            tree_map(lambda leaf, rows, n=n: _row(leaf, rows, n), tree, action) for n in range(len(next(tree_leaves(action))))
        ]
    return lambda action: [_row(space, action, n) for n in range(len(action))] if space.shape == () else action


def _row(space: gymnasium.Space, rows: NDArray[Any], n: int) -> Any:
    """A number where `space.sample()` gives one, an array where it gives one: those of no dimension too."""
    return rows[n] if isinstance(space, spaces.Discrete) else rows[n, ...]


class NativeVectorEnvs:
    """Adapter for a vectorised class of Gymnasium, which steps all environments by array arithmetic."""

    frame_stack = 1

    def __init__(self, envs: VectorEnv, first_env: int = 0) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            envs.close()
            raise ProxRLError(f"the vectorised class says autoreset_mode {mode}, which can't be used; use --vector inprocess")
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
        # One generator serves all environments, so it has one address: the episodes that all of them have begun.
        obs, _ = self._envs.reset(seed=episode_seed(seed, self._first_env, int(self.episode_counts.sum())))
        self.episode_counts += 1
        self._tracker.reset()
        self._ended = np.zeros(self.num_envs, np.bool_)
        return cast_obs(obs, self.observation_space)

    def step(self, action: Tree) -> Step:
        try:
            obs, given_reward, terminated, truncated, info = self._envs.step(action)
        except Exception as error:
            raise ProxRLError(f"the vectorised environments failed in step: {one_line(error)}") from error
        terminated = np.asarray(terminated)
        truncated = np.asarray(truncated) & ~terminated
        ended = terminated | truncated
        final_obs = None
        valid = ~self._ended
        if self.autoreset is Autoreset.NEXT_STEP:
            self.episode_counts += self._ended
            self._ended = ended
        else:
            self.episode_counts += ended
            if ended.any():
                final_obs = self._final_obs(info["final_obs"], ended)
        episodes = self._tracker.step(np.asarray(given_reward), valid, ended)
        reward = np.asarray(given_reward, np.float32)
        return Step(cast_obs(obs, self.observation_space), reward, terminated, truncated, valid, final_obs, episodes)

    def close(self) -> None:
        self._envs.close()

    def _final_obs(self, given: Any, ended: NDArray[np.bool_]) -> Tree:
        if isinstance(given, np.ndarray) and given.dtype == object:  # one observation per environment, None where none ended
            return cast_obs(tree_map(lambda *rows: np.stack(rows), *given[ended]), self.observation_space)
        return cast_obs(tree_map(lambda array: np.asarray(array)[ended], given), self.observation_space)


def make_native(
    env: str, num_envs: int, kwargs: dict[str, Any] | None = None, first_env: int = 0, max_episode_steps: int | None = None
) -> NativeVectorEnvs:
    """The vectorised class that Gymnasium registers for this id."""
    kwargs = dict(kwargs or {})
    if max_episode_steps is not None:
        kwargs["max_episode_steps"] = max_episode_steps
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"gymnasium\.")
            envs = gymnasium.make_vec(env, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except Exception as error:
        raise ProxRLError(f"can't make the vectorised class of {env}: {one_line(error)}; use --vector inprocess") from error
    return NativeVectorEnvs(envs, first_env)
