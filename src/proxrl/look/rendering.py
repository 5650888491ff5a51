"""One environment of a run, made once more to be looked at: the policy sees what it saw in training, and people see pictures."""

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
from proxrl.engine.api import Compute
from proxrl.envs.api import Environments
from proxrl.envs.atari import AtariEnvPool, ClassicAtari, envpool_task, rom_of
from proxrl.envs.envpool import EnvPoolEnvs, load_system_egl, task_name, task_packages
from proxrl.envs.gymnasium import InProcessEnvs, find_callable, make_env
from proxrl.envs.registry import ATARI, CUSTOM, ENVPOOL_DIFFERS, MUJOCO, OTHER, PROCGEN, EnvName, Family, check_env
from proxrl.errors import ProxRLError, one_line
from proxrl.look.evaluation import act_steps
from proxrl.look.filmed import Film, FilmedEnv, FilmedPool
from proxrl.look.opengl import APT_LINE, SET_GL, choose_mujoco_gl, has_display, may_need_mujoco_gl
from proxrl.policy.policy import Policy
from proxrl.types import Episode

PICTURES = "rgb_array"
DEFAULT_FPS = 30.0
FASTEST_FPS = 1000.0
ATARI_FPS = 60.0  # of the console
PROCGEN_FPS = 15.0  # as its authors show it


@dataclass
class Stage:
    """An environment and the film of it. `limit` is how many steps an episode may have, where that is known."""

    environments: Environments
    film: Film
    fps: float
    limit: int | None


def open_stage(config: Config, env: EnvName) -> Stage:
    """One environment as the run has it, with pictures; refuses in one line what can't be drawn."""
    if not has_display():
        # Gymnasium draws many tasks with pygame, which would look for a display and complain.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if may_need_mujoco_gl(env):
        choose_mujoco_gl()
    family = check_env(env, config.vector)
    film = Film(config.env)
    try:
        if _is_envpools(config, env, family):
            stage = _envpool_stage(config, film, family)
        else:
            stage = _single_stage(config, env, film, family)
        try:
            stage.environments.reset(0)
            film.check()
        except BaseException:
            stage.environments.close()
            raise
    except ProxRLError as error:
        # Training has imported MuJoCo long before anybody asked for pictures.
        if "mujoco" in sys.modules and family in (CUSTOM, OTHER) and "GL" in str(error):
            raise ProxRLError(f"{error}; {SET_GL}") from error
        raise
    return stage


def _is_envpools(config: Config, env: EnvName, family: Family) -> bool:
    """Whether EnvPool itself must draw: Gymnasium's pictures are the better known, but only of a task that is the same."""
    if config.vector != "envpool" or not isinstance(env, str):
        return False
    known = env in gymnasium.registry and family.installed and env not in ENVPOOL_DIFFERS
    return family is ATARI or not known or bool(config.env_kwargs)


def _single_stage(config: Config, env: EnvName, film: Film, family: Family) -> Stage:
    made = _atari_game(config, env) if family is ATARI else _single_env(config, env)
    # Gymnasium's tasks ask for an OpenGL when they first draw, and take one that needs a display if nobody says otherwise.
    if "mujoco" in sys.modules and not choose_mujoco_gl() and family is MUJOCO:
        made.close()
        raise ProxRLError(f"{config.env} can't be drawn: MuJoCo finds no OpenGL that draws without a display; {APT_LINE}")
    fps = ATARI_FPS / config.frame_skip if family is ATARI else _speed(made.metadata.get("render_fps"))
    limit = config.max_episode_steps or getattr(made.spec, "max_episode_steps", None)
    stack = config.frame_stack if family is ATARI else 1
    return Stage(InProcessEnvs([lambda: FilmedEnv(made, film)], frame_stack=stack), film, fps, limit)


def _speed(told: Any) -> float:
    """What an environment says about itself, if a video can have it."""
    try:
        fps = float(told)
    except (TypeError, ValueError):
        return DEFAULT_FPS
    return fps if 0 < fps <= FASTEST_FPS else DEFAULT_FPS


def _atari_game(config: Config, env: EnvName) -> gymnasium.Env:
    """ale-py's pool has no pictures, but its observations are those of single games, pixel by pixel."""
    for module in ("ale_py", "cv2"):
        if importlib.util.find_spec(module) is None:
            raise ProxRLError(f"drawing {config.env} needs the atari extra: pip install 'proxrl[atari]'")
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner among the lines of a command
    # Rewards as the game gives them, so that the return so far is the score on the screen.
    options = dataclasses.replace(atari_options(config), sign_rewards=False)
    return ClassicAtari(rom_of(str(env)) or "", options, PICTURES)


def _single_env(config: Config, env: EnvName) -> gymnasium.Env:
    kwargs, rest = dict(config.env_kwargs), (config.max_episode_steps, config.action_mask)
    source: Any = gymnasium.registry.get(env, env) if isinstance(env, str) else env
    if isinstance(source, str) and ":" in source:
        source = find_callable(source) or source
    if not callable(source) or _takes(source, "render_mode"):
        ways = [{"render_mode": PICTURES}]
    elif _takes(source, None):  # it passes on what it gets, maybe to something that does not take it
        ways = [{"render_mode": PICTURES}, {}]
    else:
        ways = [{}]
    try:
        made = _first_made([functools.partial(make_env, source, kwargs | way, *rest) for way in ways])
    except ProxRLError as error:
        reason = one_line(error.__cause__) if error.__cause__ else str(error)
        raise ProxRLError(f"{config.env} can't be drawn: it can't be made with render_mode rgb_array ({reason})") from error
    if made.render_mode != PICTURES:
        made.close()
        raise ProxRLError(
            f"{config.env} can't be drawn: its render_mode is {made.render_mode}; let what makes it take render_mode='rgb_array',"
            " and render() return a picture [height, width, 3]"
        )
    return made


def _first_made(makers: Sequence[Callable[[], gymnasium.Env]]) -> gymnasium.Env:
    """By the first that succeeds; if none does, the error is the first's."""
    try:
        return makers[0]()
    except ProxRLError:
        for maker in makers[1:]:
            with contextlib.suppress(ProxRLError):
                return maker()
        raise


def _takes(function: Callable[..., Any], name: str | None) -> bool:
    """Whether there is a parameter of that name; None for one that takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind is one.VAR_KEYWORD if name is None else one.name == name for one in parameters)


def _envpool_stage(config: Config, film: Film, family: Family) -> Stage:
    if family is ATARI:
        options = dataclasses.replace(atari_options(config), sign_rewards=False)
        pool: EnvPoolEnvs = AtariEnvPool(envpool_task(rom_of(config.env) or ""), 1, options, render_mode=PICTURES)
        return Stage(FilmedPool(pool, film), film, ATARI_FPS / config.frame_skip, options.max_steps)
    if "mujoco" in task_packages()[task_name(config.env)] and not load_system_egl():
        raise ProxRLError(f"{config.env} can't be drawn: EnvPool needs EGL, loaded before envpool is imported; {APT_LINE}")
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    kwargs: dict[str, Any] = {**config.env_kwargs, **limit, "render_mode": PICTURES}
    pool = EnvPoolEnvs(config.env, 1, **kwargs)
    return Stage(FilmedPool(pool, film), film, PROCGEN_FPS if family is PROCGEN else DEFAULT_FPS, config.max_episode_steps)


class Moment(NamedTuple):
    """What there is to see after one step."""

    frames: list[Frame]  # one, and before an episode's first step that of its beginning
    episode: int  # which, from 0
    step: int  # of this episode
    total: float  # return so far
    finished: Episode | None


def moments(stage: Stage, compute: Compute, policy: Policy, seed: int, deterministic: bool) -> Iterator[Moment]:
    """A policy on the stage, episode after episode. Its seeds are those of an evaluation's first environment; the episodes too if
    the run's environments are made one by one, but a pool or a vectorised class draws other numbers from them.
    """
    stage.film.clear()
    episode, length, total = 0, 0, 0.0
    for step in act_steps(stage.environments, compute, policy, seed, deterministic):
        if step.valid[0]:
            length, total = length + 1, total + float(step.reward[0])
        finished = step.episodes[0] if step.episodes else None
        yield Moment(stage.film.take(), episode, length, finished.total_reward if finished else total, finished)
        if finished:
            episode, length, total = episode + 1, 0, 0.0
