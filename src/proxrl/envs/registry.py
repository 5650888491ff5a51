"""The families of environments, whether an environment can run here, and which class steps many of them."""

import difflib
import functools
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gymnasium

from proxrl.envs.api import Environments
from proxrl.envs.atari import (
    AlePoolEnvs,
    AtariEnvPool,
    AtariOptions,
    ale_installed,
    envpool_task,
    looks_like_atari,
    make_game,
    rom_of,
)
from proxrl.envs.envpool import DM_CONTROL, EnvPoolEnvs, envpool_installed, task_name, task_packages
from proxrl.envs.given import GivenEnv
from proxrl.envs.gymnasium import InProcessEnvs, find_callable, make_env, make_native
from proxrl.envs.vector import make_vectorized
from proxrl.envs.workers import WorkerEnvs
from proxrl.envs.wrapping import Wrapping
from proxrl.errors import ProxRLError

Vector: TypeAlias = Literal["inprocess", "native", "workers", "envpool"]
EnvName: TypeAlias = str | Callable[..., Any]


@dataclass(frozen=True)
class Family:
    """Environments that share a preset and the packages that they need."""

    name: str
    title: str
    examples: tuple[str, ...]
    preset: str
    extra: str | None = None  # `pip install 'proxrl[extra]'` installs what they need
    modules: tuple[str, ...] = ()  # the modules of the extra

    @property
    def installed(self) -> bool:
        """Whether the modules are installed, without importing them."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


CLASSIC = Family("classic", "Classic control", ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0"), "classic")
TOY_TEXT = Family("toy_text", "Toy text", ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"), "toy_text")
BOX2D = Family("box2d", "Box2D", ("LunarLander-v3", "BipedalWalker-v3"), "box2d", "box2d", ("Box2D",))
MUJOCO = Family(
    # imageio is for rendering, but Gymnasium's MuJoCo module always imports it.
    "mujoco",
    "MuJoCo",
    ("HalfCheetah-v5", "Hopper-v4", "Ant-v5", "Humanoid-v5"),
    "mujoco",
    "mujoco",
    ("mujoco", "imageio"),
)
DM = Family(
    "dm_control", "DeepMind Control", ("dm_control/cheetah-run-v0", "WalkerWalk-v1"), "dm_control", "dm_control", ("envpool",)
)
ATARI = Family("atari", "Atari", ("ALE/Pong-v5", "BreakoutNoFrameskip-v4", "Pong-v5"), "atari", "atari", ("ale_py", "cv2"))
PROCGEN = Family("procgen", "Procgen", ("CoinrunEasy-v0", "StarpilotHard-v0"), "procgen", "envpool", ("envpool",))
CUSTOM = Family("custom", "Your own", ("my_package.my_module:make_env",), "default")
OTHER = Family("other", "Other Gymnasium environments", ("my_package:MyEnv-v0",), "default")
FAMILIES = (CLASSIC, TOY_TEXT, BOX2D, MUJOCO, DM, ATARI, PROCGEN, CUSTOM, OTHER)

_GYMNASIUM_PACKAGES = {"classic_control": CLASSIC, "toy_text": TOY_TEXT, "box2d": BOX2D, "mujoco": MUJOCO}
_ENVPOOL_PACKAGES = {
    "classic_control": CLASSIC,
    "toy_text": TOY_TEXT,
    "box2d": BOX2D,
    "mujoco.gym": MUJOCO,
    "mujoco.dmc": DM,
    "procgen": PROCGEN,
}
# To recognize dm_control tasks by name if EnvPool, which has the list of them, is not installed.
_DM_DOMAINS = (
    "Acrobot|BallInCup|Cartpole|Cheetah|Dog|Finger|Fish|Hopper|Humanoid|HumanoidCMU|Lqr|Manipulator|Pendulum|PointMass|Quadruped"
    "|Reacher|Stacker|Swimmer|Walker"
)
_DM_TASK = re.compile(rf"({_DM_DOMAINS})[A-Z]\w*-v1")

# The number of environments from which EnvPool is faster than the loop in this process, by family or id. Measured on 2 cores, in
# microseconds: the loop takes 70 per environment in HalfCheetah, 48 in LunarLander, 52 in Acrobot and 18 in Pendulum; EnvPool
# takes, for 4 / 8 / 16 environments together, 276 / 381 / 589, 176 / 230 / 271, 127 / 144 / 166 and 164 / 178 / 187. The loop is
# chosen if both are equal, since it has no dummy steps. CartPole's steps are too short for threads: its vectorized class takes
# 80 for any number of environments, the loop 10 per environment.
_ENVPOOL_FROM = {
    "mujoco": 8,
    "box2d": 8,
    "Acrobot-v1": 4,
    "Pendulum-v1": 16,
    "MountainCar-v0": 32,
    "MountainCarContinuous-v0": 32,
}
_NATIVE_FROM = {"CartPole-v0": 16, "CartPole-v1": 16}
# Tasks that may differ between EnvPool and Gymnasium: EnvPool leaves the contact forces in observations of Humanoid v4 at zero,
# and the frames of CarRacing have not been compared.
ENVPOOL_DIFFERS = frozenset({"Humanoid-v4", "HumanoidStandup-v4", "CarRacing-v3"})


def families() -> tuple[Family, ...]:
    """Return all families, for `proxrl envs`."""
    return FAMILIES


def find_family(env: EnvName) -> Family:
    """Return the family of an id, of `module:callable`, or of a callable."""
    if not isinstance(env, str) or (":" in env and find_callable(env) is not None):
        return CUSTOM
    if looks_like_atari(env):
        return ATARI
    spec = gymnasium.registry.get(env.rpartition(":")[2])
    if spec is not None:
        # The entry point of MuJoCo v2 and v3 tasks is a function that raises, outside the package of the others.
        package = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point))
        return _GYMNASIUM_PACKAGES.get(package[1], OTHER) if package else (MUJOCO if _is_retired(env) else OTHER)
    if env.startswith(DM_CONTROL) or _DM_TASK.fullmatch(env):
        return DM
    return _ENVPOOL_PACKAGES.get(task_packages().get(env, "").removeprefix("envpool."), OTHER)


def check_env(env: EnvName, vector: str = "auto") -> Family:
    """Return the family of an environment, or raise a `ProxRLError` if it can't run here."""
    family = find_family(env)
    if not isinstance(env, str) or ":" in env:
        return family
    if family is ATARI:
        return _check_atari(env, vector)
    in_envpool = task_name(env) in task_packages() if vector == "envpool" or env not in gymnasium.registry else False
    if not family.installed and not (in_envpool and family is not DM):
        raise ProxRLError(f"{env} needs the {family.extra} extra: pip install 'proxrl[{family.extra}]'")
    if in_envpool:
        return family
    if _is_retired(env):
        stem = env.rpartition("-v")[0]
        raise ProxRLError(f"{env} needs mujoco-py, which is no longer maintained; use {stem}-v4 or {stem}-v5")
    if env not in gymnasium.registry:
        raise _unknown(env)
    return family


def _unknown(env: str) -> ProxRLError:
    near = ", ".join(suggestions(env))
    return ProxRLError(f"unknown environment {env!r}; {f'did you mean {near}?' if near else 'proxrl envs lists examples'}")


def _check_atari(env: str, vector: str) -> Family:
    if rom_of(env) is None:
        raise _unknown(env) if ale_installed() else ProxRLError(f"{env} needs the atari extra: pip install 'proxrl[atari]'")
    needed = {"native": ("ale_py",), "inprocess": ("ale_py", "cv2"), "workers": ("ale_py", "cv2"), "envpool": ("envpool",)}
    for module in needed.get(vector, ()):
        if importlib.util.find_spec(module) is None:
            extra = "envpool" if module == "envpool" else "atari"
            raise ProxRLError(f"--vector {vector} needs the {extra} extra for {env}: pip install 'proxrl[{extra}]'")
    return ATARI


def suggestions(env: str, most: int = 3) -> list[str]:
    """Return known ids similar to a mistyped one: first other versions of the same name, ignoring case."""
    env = task_name(env)
    known = [name for name in [*gymnasium.registry, *task_packages()] if not _is_retired(name)]
    by_lower_case = {name.lower(): name for name in reversed(known)}  # Gymnasium's spelling wins over EnvPool's
    stem = env.lower().rpartition("-v")[0] or env.lower()
    same = sorted((name for lower, name in by_lower_case.items() if lower.rpartition("-v")[0] == stem), reverse=True)
    near = [by_lower_case[lower] for lower in difflib.get_close_matches(env.lower(), by_lower_case, n=most, cutoff=0.7)]
    return list(dict.fromkeys(same + near))[:most]


def choose_vector(
    env: EnvName, num_envs: int, family: Family, env_kwargs: dict[str, Any] | None = None, single: bool = False
) -> Vector:
    """Return where environments run fastest, by fixed rules: a measurement could come out differently when a run is resumed.

    `single` environments are made one by one, because they are wrapped.
    """
    if not isinstance(env, str) or (single and (family is ATARI or env in gymnasium.registry)):
        return "inprocess"
    if family is ATARI:
        # Four games of Pong on 2 busy cores: 1,628 steps/s in ale-py's pool, 1,384 in EnvPool, 1,210 as single games.
        return "native" if ale_installed() else "envpool"
    if family is DM or (":" not in env and env not in gymnasium.registry):
        return "envpool"
    if env in _NATIVE_FROM and num_envs >= _NATIVE_FROM[env] and gymnasium.registry[env].vector_entry_point is not None:
        return "native"
    least = _ENVPOOL_FROM.get(env) or _ENVPOOL_FROM.get(family.name)
    if least is None or num_envs < least or env_kwargs or env in ENVPOOL_DIFFERS or not envpool_installed():
        return "inprocess"
    return "envpool" if env in task_packages() else "inprocess"


def make_environments(
    env: EnvName,
    env_kwargs: dict[str, Any] | None = None,
    num_envs: int = 1,
    vector: str = "auto",
    num_workers: int | None = None,
    first_env: int = 0,
    max_episode_steps: int | None = None,
    action_mask: str = "auto",
    atari: AtariOptions | None = None,
    wrapping: Wrapping | None = None,
) -> Environments:
    """Make N environments of a pool; `vector` is "auto" or one of `Vector`."""
    kwargs, wrapping = dict(env_kwargs or {}), wrapping or Wrapping()
    family = check_env(env, vector)
    if max_episode_steps is not None and "max_episode_steps" in kwargs and family is not CUSTOM:
        raise ProxRLError("--max-episode-steps and --env-kwargs both set the time limit; use one of them")
    if isinstance(env, GivenEnv):
        vector = "native" if env.vectorized else vector if vector == "workers" else "inprocess"
    if vector == "auto":
        vector = choose_vector(env, num_envs, family, kwargs, wrapping.is_needed)
    if wrapping.is_needed and vector in ("envpool", "native"):
        only = isinstance(env, str) and family is not ATARI and ":" not in env and env not in gymnasium.registry
        advice = f"leave it out, since {env} exists only in EnvPool" if only else "use --vector inprocess or workers"
        raise ProxRLError(f"{wrapping.flag} needs environments that are made one by one; {advice}")
    if family is ATARI and isinstance(env, str):
        if action_mask not in ("auto", "off"):
            raise ProxRLError(f"--action-mask {action_mask}: Atari games have no action masks; leave it out")
        if kwargs:
            raise ProxRLError("--env-kwargs are not for Atari games, whose options are flags (see proxrl train --help)")
        return _make_atari(env, num_envs, vector, num_workers, first_env, atari or AtariOptions(), wrapping)
    if isinstance(env, str) and vector != "envpool" and env not in gymnasium.registry and ":" not in env:
        raise ProxRLError(f"{env} exists only in EnvPool; use --vector envpool")
    if vector in ("envpool", "native") and action_mask not in ("auto", "off"):
        raise ProxRLError(f"--action-mask {action_mask} needs single environments; use --vector inprocess or workers")
    match vector:
        case "envpool":
            if not isinstance(env, str) or family is CUSTOM:
                raise ProxRLError("EnvPool can't run custom environments; use --vector inprocess or workers")
            limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
            return EnvPoolEnvs(env, num_envs, first_env, **limit, **kwargs)
        case "native":
            if not isinstance(env, str) or family is CUSTOM:
                if max_episode_steps is not None:
                    raise ProxRLError("--max-episode-steps needs single environments; set the time limit of a VectorEnv itself")
                return make_vectorized(env, kwargs, num_envs, first_env, action_mask)
            if gymnasium.spec(env).vector_entry_point is None:
                raise ProxRLError(f"Gymnasium has no vectorized class for {_label(env)}; use --vector inprocess or workers")
            return make_native(env, num_envs, kwargs, first_env, max_episode_steps)
        case "workers" | "inprocess":
            # The spec instead of the id, since worker processes do not know ids that only this process registered.
            source = gymnasium.registry.get(env, env) if isinstance(env, str) else env
            makers = [functools.partial(make_env, source, kwargs, max_episode_steps, action_mask, wrapping)] * num_envs
            if vector == "workers":
                return WorkerEnvs(makers, first_env, num_workers)
            return InProcessEnvs(makers, first_env)
        case _:
            raise ProxRLError(f"--vector is {vector!r}, but must be one of auto, inprocess, native, workers, envpool")


def _make_atari(
    env: str,
    num_envs: int,
    vector: str,
    num_workers: int | None,
    first_env: int,
    options: AtariOptions,
    wrapping: Wrapping,
) -> Environments:
    rom = rom_of(env) or ""  # never empty after `check_env`
    match vector:
        case "native":
            return AlePoolEnvs(rom, num_envs, options, first_env)
        case "envpool":
            return AtariEnvPool(envpool_task(rom), num_envs, options, first_env)
    makers = [functools.partial(make_game, rom, options, wrapping)] * num_envs
    pool: Environments = WorkerEnvs(makers, first_env, num_workers) if vector == "workers" else InProcessEnvs(makers, first_env)
    # A wrapper may have changed what an observation is.
    pool.frame_stack = options.frame_stack if pool.observation_space == options.observation_space else 1
    return pool


def _is_retired(env: str) -> bool:
    """Return whether an id is a MuJoCo task v2 or v3: its entry point is a function in `gymnasium.envs` that raises an error."""
    spec = gymnasium.registry.get(env)
    return spec is not None and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"


def _label(env: EnvName) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))
