"""One environment of a run, created again with rendering: the policy gets the observations of training, people get frames."""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium

from proxrl.build import atari_options
from proxrl.common.video import Frame
from proxrl.config import Config
from proxrl.config.wrappers import load_wrapping
from proxrl.engine.api import Compute
from proxrl.envs.api import Environments
from proxrl.envs.atari import AtariEnvPool, envpool_task, make_game, rom_of
from proxrl.envs.envpool import EnvPoolEnvs, load_system_egl, task_name, task_packages
from proxrl.envs.given import GivenEnv, takes
from proxrl.envs.gymnasium import InProcessEnvs, find_callable, make_env
from proxrl.envs.registry import ATARI, CUSTOM, ENVPOOL_DIFFERS, MUJOCO, OTHER, PROCGEN, EnvName, Family, check_env
from proxrl.envs.stacking import stack_frames, stack_size
from proxrl.envs.vector import make_vectorized
from proxrl.errors import ProxRLError, one_line
from proxrl.look.evaluation import act_steps
from proxrl.look.opengl import APT_LINE, SET_GL, choose_mujoco_gl, has_display, may_need_mujoco_gl
from proxrl.look.rendered_frames import RenderedFrames, RenderingPool, RenderingWrapper
from proxrl.policy.policy import Policy
from proxrl.types import Episode

RGB_ARRAY = "rgb_array"
DEFAULT_FPS = 30.0
MAX_FPS = 1000.0
ATARI_FPS = 60.0  # of the Atari console
PROCGEN_FPS = 15.0  # as in the videos of its authors


@dataclass
class RenderedEnv:
    """A pool with one environment, and the frames that are rendered from it."""

    environments: Environments
    frames: RenderedFrames
    fps: float
    max_episode_steps: int | None  # None if unknown


def open_rendered_env(config: Config, env: EnvName) -> RenderedEnv:
    """Create one environment of a run with rendering. Raises a ProxRLError if it can't be rendered."""
    if not has_display():
        # Gymnasium renders many tasks with pygame, which otherwise looks for a display and complains.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if may_need_mujoco_gl(env):
        choose_mujoco_gl()
    family = check_env(env, config.vector)
    frames = RenderedFrames(config.env)
    try:
        if _needs_envpool(config, env, family):
            rendered = _open_envpool(config, frames, family)
        elif family is CUSTOM and (config.vector == "native" or (isinstance(env, GivenEnv) and env.vectorized)):
            rendered = _open_vectorized(config, env, frames)
        else:
            rendered = _open_single_env(config, env, frames, family)
        rendered.environments = stack_frames(
            rendered.environments, stack_size(config.env, config.frame_stack), config.image_channels
        )
        try:
            rendered.environments.reset(0)
            frames.check()
        except BaseException:
            rendered.environments.close()
            raise
    except ProxRLError as error:
        # If MuJoCo was imported before rendering was requested, it is too late to choose an OpenGL backend.
        if "mujoco" in sys.modules and family in (CUSTOM, OTHER) and "GL" in str(error):
            raise ProxRLError(f"{error}; {SET_GL}") from error
        raise
    return rendered


def _needs_envpool(config: Config, env: EnvName, family: Family) -> bool:
    """Return whether EnvPool must render. Gymnasium's frames are preferred, but only if its task is the same as EnvPool's."""
    if config.vector != "envpool" or not isinstance(env, str):
        return False
    in_gymnasium = env in gymnasium.registry and family.installed and env not in ENVPOOL_DIFFERS
    return family is ATARI or not in_gymnasium or bool(config.env_kwargs)


def _open_single_env(config: Config, env: EnvName, frames: RenderedFrames, family: Family) -> RenderedEnv:
    single = _atari_game(config, env) if family is ATARI else _single_env(config, env)
    # Gymnasium's tasks choose an OpenGL when they first render: one that needs a display, unless MUJOCO_GL is set.
    if "mujoco" in sys.modules and not choose_mujoco_gl() and family is MUJOCO:
        single.close()
        raise ProxRLError(f"{config.env} can't be rendered: MuJoCo finds no OpenGL that works without a display; {APT_LINE}")
    repeat = config.action_repeat or 1  # one frame is shown for each step of the agent
    fps = ATARI_FPS / config.frame_skip if family is ATARI else _valid_fps(single.metadata.get("render_fps")) / repeat
    own_limit = getattr(single.spec, "max_episode_steps", None)
    max_steps = config.max_episode_steps or (None if own_limit is None else -(-own_limit // repeat))
    environments = InProcessEnvs([lambda: RenderingWrapper(single, frames)])
    return RenderedEnv(environments, frames, fps, max_steps)


def _open_vectorized(config: Config, env: EnvName, frames: RenderedFrames) -> RenderedEnv:
    """Open the environments of a VectorEnv, of which the first is shown."""
    source: Any = (find_callable(env) or env) if isinstance(env, str) else env
    mode = {"render_mode": RGB_ARRAY} if takes(source, "render_mode") else {}
    pool = make_vectorized(source, {**config.env_kwargs, **mode}, 1, action_mask=config.action_mask)
    if pool.render_mode != RGB_ARRAY:
        pool.close()
        raise ProxRLError(
            f"{config.env} can't be rendered: the render_mode of its VectorEnv is {pool.render_mode}; let its callable accept"
            " render_mode='rgb_array'"
        )
    fps = _valid_fps(pool.metadata.get("render_fps"))
    return RenderedEnv(RenderingPool(pool, frames), frames, fps, config.max_episode_steps)


def _valid_fps(render_fps: Any) -> float:
    """Return the `render_fps` of an environment if a video can have that speed, otherwise the default."""
    try:
        fps = float(render_fps)
    except (TypeError, ValueError):
        return DEFAULT_FPS
    return fps if 0 < fps <= MAX_FPS else DEFAULT_FPS


def _atari_game(config: Config, env: EnvName) -> gymnasium.Env:
    """Create a single game: ale-py's pool can't render, but its observations equal those of single games pixel by pixel."""
    for module in ("ale_py", "cv2"):
        if importlib.util.find_spec(module) is None:
            raise ProxRLError(f"rendering {config.env} needs the atari extra: pip install 'proxrl[atari]'")
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner in the output of a command
    # Unclipped rewards, so that the return so far is the score on the screen.
    options = dataclasses.replace(atari_options(config), sign_rewards=False)
    return make_game(rom_of(str(env)) or "", options, load_wrapping(config), RGB_ARRAY)


def _single_env(config: Config, env: EnvName) -> gymnasium.Env:
    """Create an environment with render_mode 'rgb_array', or without the argument if its constructor does not take it."""
    kwargs, options = dict(config.env_kwargs), (config.max_episode_steps, config.action_mask, load_wrapping(config))
    source: Any = gymnasium.registry.get(env, env) if isinstance(env, str) else env
    if isinstance(source, str) and ":" in source:
        source = find_callable(source) or source
    if not callable(source) or _takes(source, "render_mode"):
        attempts = [{"render_mode": RGB_ARRAY}]
    elif _takes(source, None):  # it passes its keyword arguments on, maybe to something that takes no render_mode
        attempts = [{"render_mode": RGB_ARRAY}, {}]
    else:
        attempts = [{}]
    try:
        single = _first_success([functools.partial(make_env, source, kwargs | attempt, *options) for attempt in attempts])
    except ProxRLError as error:
        reason = one_line(error.__cause__) if error.__cause__ else str(error)
        raise ProxRLError(
            f"{config.env} can't be rendered: it can't be created with render_mode='rgb_array' ({reason})"
        ) from error
    if single.render_mode != RGB_ARRAY:
        single.close()
        raise ProxRLError(
            f"{config.env} can't be rendered: its render_mode is {single.render_mode}; let its constructor accept"
            " render_mode='rgb_array', and render() return an image [height, width, 3]"
        )
    return single


def _first_success(makers: Sequence[Callable[[], gymnasium.Env]]) -> gymnasium.Env:
    """Return the result of the first call that succeeds. If none does, raise the error of the first."""
    try:
        return makers[0]()
    except ProxRLError:
        for maker in makers[1:]:
            with contextlib.suppress(ProxRLError):
                return maker()
        raise


def _takes(function: Callable[..., Any], name: str | None) -> bool:
    """Return whether a function has a parameter of this name; with None, whether it has `**kwargs`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD if name is None else parameter.name == name for parameter in parameters)


def _open_envpool(config: Config, frames: RenderedFrames, family: Family) -> RenderedEnv:
    if family is ATARI:
        options = dataclasses.replace(atari_options(config), sign_rewards=False)
        pool: EnvPoolEnvs = AtariEnvPool(envpool_task(rom_of(config.env) or ""), 1, options, render_mode=RGB_ARRAY)
        fps = ATARI_FPS / config.frame_skip
        return RenderedEnv(RenderingPool(pool, frames), frames, fps, options.max_steps)
    if "mujoco" in task_packages()[task_name(config.env)] and not load_system_egl():
        raise ProxRLError(f"{config.env} can't be rendered: EnvPool needs EGL, loaded before envpool is imported; {APT_LINE}")
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    kwargs: dict[str, Any] = {**config.env_kwargs, **limit, "render_mode": RGB_ARRAY}
    pool = EnvPoolEnvs(config.env, 1, **kwargs)
    fps = PROCGEN_FPS if family is PROCGEN else DEFAULT_FPS
    return RenderedEnv(RenderingPool(pool, frames), frames, fps, config.max_episode_steps)


class RenderedStep(NamedTuple):
    """One step of a rendered environment."""

    frames: list[Frame]  # one; two after the first step of an episode, whose beginning comes first; none for a dummy step
    episode: int  # counted from 0
    length: int  # steps of this episode so far
    total_reward: float  # of this episode so far
    finished: Episode | None  # the episode that this step ended


def rendered_steps(
    rendered: RenderedEnv, compute: Compute, policy: Policy, seed: int, deterministic: bool
) -> Iterator[RenderedStep]:
    """Yield the steps of a policy, episode after episode.

    The seeds are those of the first environment in an evaluation. The episodes are the same too if the run's environments are
    created one by one; a pool or a vectorized class draws other numbers from the same seed.
    """
    rendered.frames.clear()
    episode, length, total_reward = 0, 0, 0.0
    for step in act_steps(rendered.environments, compute, policy, seed, deterministic):
        if step.valid[0]:
            length, total_reward = length + 1, total_reward + float(step.reward[0])
        finished = next((episode for episode in step.episodes if episode.env == 0), None)
        if finished:
            total_reward = finished.total_reward
        yield RenderedStep(rendered.frames.take(), episode, length, total_reward, finished)
        if finished:
            episode, length, total_reward = episode + 1, 0, 0.0
