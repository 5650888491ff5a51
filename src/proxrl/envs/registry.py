"""Which family an environment belongs to, whether it can run here, and which class steps many of it."""

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
    ClassicAtari,
    ale_installed,
    envpool_task,
    looks_like_atari,
    rom_of,
)
from proxrl.envs.envpool import DM_CONTROL, EnvPoolEnvs, envpool_installed, task_name, task_packages
from proxrl.envs.gymnasium import InProcessEnvs, find_callable, make_env, make_native
from proxrl.envs.workers import WorkerEnvs
from proxrl.errors import ProxRLError

Vector: TypeAlias = Literal["inprocess", "native", "workers", "envpool"]
EnvName: TypeAlias = str | Callable[..., Any]


@dataclass(frozen=True)
class Family:
    """Environments that share a preset and the packages they need."""

    name: str
    title: str
    examples: tuple[str, ...]
    preset: str
    extra: str | None = None  # of `pip install 'proxrl[extra]'`
    modules: tuple[str, ...] = ()  # what the extra must provide

    @property
    def installed(self) -> bool:
        """Looked up without importing anything."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


CLASSIC = Family("classic", "Classic control", ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0"), "classic")
TOY_TEXT = Family("toy_text", "Toy text", ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"), "toy_text")
BOX2D = Family("box2d", "Box2D", ("LunarLander-v3", "BipedalWalker-v3"), "box2d", "box2d", ("Box2D",))
MUJOCO = Family(
    # imageio is for rendering, but Gymnasium's MuJoCo module imports it at once.
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
# So that a dm_control task is known by name where EnvPool, which holds the list of them, is missing.
_DM_DOMAINS = (
    "Acrobot|BallInCup|Cartpole|Cheetah|Dog|Finger|Fish|Hopper|Humanoid|HumanoidCMU|Lqr|Manipulator|Pendulum|PointMass|Quadruped"
    "|Reacher|Stacker|Swimmer|Walker"
)
_DM_TASK = re.compile(rf"({_DM_DOMAINS})[A-Z]\w*-v1")

# From how many environments EnvPool's C++ threads beat the loop in this process, by family or id. One loop step takes (2 cores,
# microseconds per environment) 70 in HalfCheetah, 48 in LunarLander, 52 in Acrobot, 18 in Pendulum; EnvPool's takes for
# 4 / 8 / 16 environments 276 / 381 / 589, 176 / 230 / 271, 127 / 144 / 166 and 164 / 178 / 187. A tie goes to the loop, which
# needs no dummy steps. CartPole is too cheap for threads; its vectorised class takes 80 for any number, the loop 10 for each.
_ENVPOOL_FROM = {
    "mujoco": 8,
    "box2d": 8,
    "Acrobot-v1": 4,
    "Pendulum-v1": 16,
    "MountainCar-v0": 32,
    "MountainCarContinuous-v0": 32,
}
_NATIVE_FROM = {"CartPole-v0": 16, "CartPole-v1": 16}
# Where both have the id but maybe not the same task: EnvPool leaves the contact forces in observations of Humanoid v4 at zero,
# and whether the frames of CarRacing agree was never compared.
ENVPOOL_DIFFERS = frozenset({"Humanoid-v4", "HumanoidStandup-v4", "CarRacing-v3"})


def families() -> tuple[Family, ...]:
    """All families, for `proxrl envs`; `family.installed` says whether they run here."""
    return FAMILIES


def find_family(env: EnvName) -> Family:
    """The family of an id, of `module:callable`, or of a callable."""
    if not isinstance(env, str) or (":" in env and find_callable(env) is not None):
        return CUSTOM
    if looks_like_atari(env):
        return ATARI
    spec = gymnasium.registry.get(env.rpartition(":")[2])
    if spec is not None:
        # MuJoCo v2 and v3 are registered with a function that raises, so the entry point can't tell.
        package = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point))
        return _GYMNASIUM_PACKAGES.get(package[1], OTHER) if package else (MUJOCO if _is_retired(env) else OTHER)
    if env.startswith(DM_CONTROL) or _DM_TASK.fullmatch(env):
        return DM
    return _ENVPOOL_PACKAGES.get(task_packages().get(env, "").removeprefix("envpool."), OTHER)


def check_env(env: EnvName, vector: str = "auto") -> Family:
    """Refuse what can't run here in one line that says what would; otherwise return the family."""
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
    """Known ids nearest to a mistyped one: other versions of the same name first, whatever the capitals."""
    env = task_name(env)
    known = [name for name in [*gymnasium.registry, *task_packages()] if not _is_retired(name)]
    spelt = {name.lower(): name for name in reversed(known)}  # Gymnasium's spelling wins over EnvPool's
    stem = env.lower().rpartition("-v")[0] or env.lower()
    same = sorted((name for lower, name in spelt.items() if lower.rpartition("-v")[0] == stem), reverse=True)
    near = [spelt[lower] for lower in difflib.get_close_matches(env.lower(), spelt, n=most, cutoff=0.7)]
    return list(dict.fromkeys(same + near))[:most]


def choose_vector(env: EnvName, num_envs: int, family: Family, env_kwargs: dict[str, Any] | None = None) -> Vector:
    """Where environments run best, by rule: timing at start-up could choose differently next time and change the run."""
    if not isinstance(env, str):
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
) -> Environments:
    """N environments behind the one contract; `vector` is "auto" or one of `Vector`."""
    kwargs = dict(env_kwargs or {})
    family = check_env(env, vector)
    if max_episode_steps is not None and "max_episode_steps" in kwargs and family is not CUSTOM:
        raise ProxRLError("the time limit is given twice, by --max-episode-steps and in --env-kwargs; give it once")
    if vector == "auto":
        vector = choose_vector(env, num_envs, family, kwargs)
    if family is ATARI and isinstance(env, str):
        return _make_atari(env, kwargs, num_envs, vector, num_workers, first_env, action_mask, atari or AtariOptions())
    if isinstance(env, str) and vector != "envpool" and env not in gymnasium.registry and ":" not in env:
        raise ProxRLError(f"only EnvPool has {env}; use --vector envpool")
    if vector in ("envpool", "native") and action_mask not in ("auto", "off"):
        raise ProxRLError(f"--action-mask {action_mask} is read from single environments; use --vector inprocess or workers")
    match vector:
        case "envpool":
            if not isinstance(env, str) or family is CUSTOM:
                raise ProxRLError("EnvPool can't run an environment of your own; use --vector inprocess or workers")
            limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
            return EnvPoolEnvs(env, num_envs, first_env, **limit, **kwargs)
        case "native":
            if not isinstance(env, str) or family is CUSTOM or gymnasium.spec(env).vector_entry_point is None:
                raise ProxRLError(f"Gymnasium has no vectorised class for {_label(env)}; use --vector inprocess or workers")
            return make_native(env, num_envs, kwargs, first_env, max_episode_steps)
        case "workers" | "inprocess":
            # The registered description rather than the id: worker processes don't know what this process registered.
            source = gymnasium.registry.get(env, env) if isinstance(env, str) else env
            makers = [functools.partial(make_env, source, kwargs, max_episode_steps, action_mask)] * num_envs
            if vector == "workers":
                return WorkerEnvs(makers, first_env, num_workers)
            return InProcessEnvs(makers, first_env)
        case _:
            raise ProxRLError(f"--vector is {vector!r}, but must be one of auto, inprocess, native, workers, envpool")


def _make_atari(
    env: str,
    kwargs: dict[str, Any],
    num_envs: int,
    vector: str,
    num_workers: int | None,
    first_env: int,
    action_mask: str,
    options: AtariOptions,
) -> Environments:
    if action_mask not in ("auto", "off"):
        raise ProxRLError(f"--action-mask {action_mask}: Atari games allow every action at any time; leave it out")
    if kwargs:
        raise ProxRLError("--env-kwargs are not for Atari games, whose options are flags of their own (proxrl train --help)")
    rom = rom_of(env) or ""  # `check_env` has seen to it that there is one
    match vector:
        case "native":
            return AlePoolEnvs(rom, num_envs, options, first_env)
        case "envpool":
            return AtariEnvPool(envpool_task(rom), num_envs, options, first_env)
    makers = [functools.partial(ClassicAtari, rom, options)] * num_envs
    if vector == "workers":
        return WorkerEnvs(makers, first_env, num_workers, frame_stack=options.frame_stack)
    return InProcessEnvs(makers, first_env, options.frame_stack)


def _is_retired(env: str) -> bool:
    spec = gymnasium.registry.get(env)
    return spec is not None and getattr(spec.entry_point, "__name__", "") == "_raise_mujoco_py_error"


def _label(env: EnvName) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))
