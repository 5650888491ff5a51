"""EnvPool: environments stepped by a C++ thread pool. ProxRL runs dm_control tasks only by EnvPool."""

import ctypes
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_leaves
from proxrl.envs.api import Autoreset, EpisodeTracker, env_kwargs_hint, episode_seed
from proxrl.envs.buffers import cast_obs, stored_space
from proxrl.envs.info import VectorInfo
from proxrl.envs.spaces import space_tree
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Step, Tree

DM_CONTROL = "dm_control/"


def envpool_installed() -> bool:
    """Return whether EnvPool is installed, without importing it, which takes a second."""
    return importlib.util.find_spec("envpool") is not None


def task_name(env: str) -> str:
    """Return EnvPool's name of a task: `CheetahRun-v1` for `dm_control/cheetah-run-v0`; other ids are unchanged."""
    if not env.startswith(DM_CONTROL):
        return env
    words = env.removeprefix(DM_CONTROL).rpartition("-v")[0].replace("-", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"


@cache
def task_packages() -> dict[str, str]:
    """Return the package of each EnvPool task, such as `envpool.mujoco.dmc`; nothing if EnvPool is not installed."""
    if not envpool_installed():
        return {}
    _import_envpool()
    from envpool.registration import registry

    return {task: entry[0] for task, entry in registry.specs.items()}


def is_dm_control(task: str) -> bool:
    return task_packages().get(task) == "envpool.mujoco.dmc"


@cache
def load_system_egl() -> bool:
    """Load the system's EGL library, and return whether EnvPool can render MuJoCo tasks.

    EnvPool ships its own EGL but looks up OpenGL functions in the system's, which does not know the contexts of the other one,
    and the process crashes. If the system's library is loaded before EnvPool, it is used for both.
    """
    if not sys.platform.startswith("linux"):
        return True
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return "envpool" not in sys.modules


def _import_envpool() -> Any:
    load_system_egl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import envpool
        except ImportError as error:
            raise ProxRLError(f"EnvPool can't be imported ({one_line(error)}): pip install 'proxrl[envpool]'") from error
    return envpool


class EnvPoolEnvs(VectorInfo):
    """N environments of one EnvPool task. The step after the end of an episode is a dummy step that resets.

    If the task ends on the last step of the time limit, EnvPool reports only `truncated`, so that `terminated` can't win.
    """

    autoreset = Autoreset.NEXT_STEP
    frame_stack = 1

    def __init__(self, env: str, num_envs: int, first_env: int = 0, **kwargs: Any) -> None:
        self._task = task_name(env)
        self._kwargs = kwargs
        self._envpool = _import_envpool()
        if self._task not in task_packages():
            raise ProxRLError(f"EnvPool has no task {self._task}; use --vector inprocess")
        raw_space, action_space = self._call(lambda envpool: _spaces(envpool.make_spec(self._task, **self._kwargs)))
        if isinstance(action_space, spaces.Dict | spaces.Tuple):
            raise ProxRLError(f"{self._task} has nested actions, which are not supported with EnvPool; use --vector inprocess")
        self._raw_space = replace_unknown_bounds(raw_space)
        self._flatten = is_dm_control(self._task)
        self.num_envs = num_envs
        self.observation_space = flat_space(self._raw_space) if self._flatten else stored_space(self._raw_space)
        self.action_space = stored_space(action_space)
        self.episode_counts = np.zeros(num_envs, np.int64)
        self._first_env = first_env
        self._tracker = EpisodeTracker(num_envs)
        self._ended = np.zeros(num_envs, np.bool_)
        self._pool: Any = None

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        counts = np.zeros(self.num_envs, np.int64) if episode_counts is None else np.asarray(episode_counts, np.int64)
        # EnvPool takes seeds only at construction; later episodes continue with the generator of their environment.
        seeds = [episode_seed(seed, self._first_env + n, int(counts[n])) for n in range(self.num_envs)]
        options = {"env_type": "gymnasium", "num_envs": self.num_envs, "seed": seeds}
        self._pool = self._call(lambda envpool: envpool.make(self._task, **options, **self._kwargs))
        obs, _ = self._call(lambda _: self._pool.reset())
        self.episode_counts = counts + 1
        self._tracker.reset()
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._stored(obs)

    def step(self, action: Tree) -> Step:
        obs, reward, terminated, truncated, info = self._pool.step(action)
        valid = ~self._ended
        reward = np.where(valid, reward, np.float32(0))  # dm_control tasks repeat the last reward on the dummy step
        self.episode_counts += self._ended
        self._ended = terminated | truncated
        episodes = self._tracker.step(reward, valid, self._ended, info)
        return Step(self._stored(obs), reward, terminated, truncated, valid, None, episodes, self._read_info(info))

    def render(self) -> NDArray[np.uint8]:
        """Return the frame of the first environment, in pools made with `render_mode="rgb_array"`."""
        frame: NDArray[np.uint8] = self._pool.render()[0]
        return frame

    def close(self) -> None:
        self._pool = None  # its threads end when it is deleted

    def _stored(self, obs: Tree) -> Tree:
        if not self._flatten:
            return cast_obs(obs, self.observation_space)
        return flat_rows(obs, self._raw_space, self.num_envs)

    def _call(self, function: Callable[[Any], Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the precision of bounds, whenever a space is first used
            try:
                return function(self._envpool)
            except Exception as error:
                if "Qt" in str(error) and isinstance(error, ImportError):
                    raise ProxRLError(
                        f"{self._task} needs Qt 5, which is not installed: sudo apt install libqt5gui5 (Debian, Ubuntu)"
                        " or sudo dnf install qt5-qtbase (Fedora)"
                    ) from error
                hint = env_kwargs_hint(self._kwargs)
                raise ProxRLError(f"EnvPool can't make {self._task}: {one_line(error)}{hint}") from error


def _spaces(spec: Any) -> tuple[gymnasium.Space, gymnasium.Space]:
    return spec.gymnasium_observation_space, spec.gymnasium_action_space


def replace_unknown_bounds(space: gymnasium.Space) -> gymnasium.Space:
    """Replace bounds that EnvPool does not know by infinity.

    EnvPool gives the smallest positive number as their lower bound and the largest number as their upper bound.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, replace_unknown_bounds(value)) for key, value in space.items()])
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low <= limits.min), -np.inf, space.low)
    high = np.where(space.high >= limits.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)


def flat_space(space: gymnasium.Space) -> spaces.Box:
    """Return the space of a dm_control observation whose entries are concatenated to one vector."""
    size = sum(int(np.prod(leaf.shape)) for leaf in tree_leaves(space_tree(space)))
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def flat_rows(obs: Tree, space: gymnasium.Space, num_envs: int) -> NDArray[np.float32]:
    """Concatenate the entries [N, ...] of observations, in the order of the space's keys."""
    parts = [part.reshape(num_envs, -1) for part in tree_leaves(cast_obs(obs, space))]
    return np.concatenate(parts, axis=1, dtype=np.float32)
