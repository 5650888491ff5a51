"""Combine flags, files, presets and defaults into a complete config, and record where each value comes from."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxrl.config import Config, flag
from proxrl.config.code import check_file
from proxrl.config.parse import parse_value, read_toml
from proxrl.config.presets import choose_preset, load_preset
from proxrl.envs.atari import AtariOptions
from proxrl.envs.given import EnvSource, FirstMade, GivenEnv, as_maker, made_first
from proxrl.envs.registry import ATARI, CUSTOM, Family, check_env, choose_vector, find_family
from proxrl.errors import ProxRLError, check_at_least
from proxrl.world.launcher import launched

EnvLike = str | Callable[..., Any]


@dataclass(frozen=True)
class Resolved:
    """A complete config, and the source of each of its values."""

    config: Config
    sources: dict[str, str]
    env: EnvLike  # what makes its environments: a name or a callable


def resolve(
    env: EnvSource | None,
    settings: Mapping[str, Any],
    preset: str | None = None,
    earlier: Callable[[Config], Config | None] | None = None,
    file: Path | Config | None = None,
    envs_per_rank: int | None = None,
    look: bool = False,
    trust: bool = False,
) -> Resolved:
    """Return the complete config of a run.

    Values come from the defaults, then the preset of the environment's family, then `file`, such as a run's config.toml, then
    `settings`; later ones override earlier ones. Instead of a file, a Config may be given, which has all settings, so that no
    preset is used. `earlier` returns the config of the run that this one would resume: it keeps its kind of vectorization, even
    if a faster one has been installed since. With `look`, a callable is called once to see whether it returns a vectorized
    environment, which has a number of environments of its own. `trust` allows files of others to name code.
    """
    if envs_per_rank is not None:
        settings = {**settings, "num_envs": envs_of_all_ranks(envs_per_rank, settings)}
    base, base_source = _read_base(file, preset)
    given = {**base, **settings}
    if isinstance(file, Path):
        check_file(file, base, settings if env is None else {"env", *settings}, trust)
    env = given.get("env") if env is None else env
    if env is None:
        raise ProxRLError("no environment is given; name one, as in 'proxrl train CartPole-v1', or give a --config that does")
    env = as_maker(env)
    if not isinstance(env, str) and not callable(env):
        raise ProxRLError(
            f"the environment is {env!r}, but must be an id, module:callable, a callable that returns an environment,"
            " or an environment"
        )
    family = check_env(env, str(given.get("vector", "auto")))
    env_name = env if isinstance(env, str) else callable_name(env)
    task = env.task if isinstance(env, GivenEnv) and env.task is not None else env
    chosen = choose_preset(preset, find_family(task).preset)
    sources = {spec.name: "default" for spec in dataclasses.fields(Config)}
    sources["env"] = base_source if env == base.get("env") else "argument"
    values: dict[str, Any] = {"env": env_name}
    for name, setting in load_preset(chosen, task if isinstance(task, str) else env_name, given, trust).items():
        values[name], sources[name] = setting.value, f"preset {chosen}: {setting.source}"
    if not isinstance(given.get("eval_env"), str | None):  # unlike a plugin, its name need not be importable
        given["eval_env"] = callable_name(as_maker(given["eval_env"]))  # type: ignore[arg-type]
    for name, value in given.items():
        if name != "env":
            values[name], sources[name] = parse_value(name, value), "flag" if name in settings else base_source
    config = Config(**values)
    if isinstance(env, GivenEnv) or (look and family is CUSTOM and config.vector in ("auto", "native")):
        env, config = look_at(env, config, "num_envs" in given, sources)
    if config.vector == "auto":
        resumed = None if earlier is None else earlier(config)
        vector, sources["vector"] = automatic_vector(env, config, family, resumed)
        config = config.replace(vector=vector)
    if family is ATARI:
        # In a Config that is given, None may just be the default.
        config = with_frame_stack(config, "frame_stack" in (settings if isinstance(file, Config) else given), sources)
    else:
        check_atari_settings(config)
    return Resolved(config.validate(), sources, env)


def automatic_vector(env: EnvLike, config: Config, family: Family, resumed: Config | None) -> tuple[str, str]:
    """Return what --vector auto stands for, and why; `resumed` is the config of the run that is resumed, if there is one."""
    if resumed is not None:
        return resumed.vector, "auto: as in the run that is resumed"
    single = config.wrapper is not None or config.action_repeat is not None
    vector: str = choose_vector(env, config.num_envs, family, config.env_kwargs, single)
    return vector, "auto: fastest for this environment and number of environments"


def with_frame_stack(config: Config, given: bool, sources: dict[str, str]) -> Config:
    """Return the settings of an Atari game with its number of frames: one if `off` was given or the policy has a memory, as in
    the published runs of LSTM policies, otherwise the usual number.
    """
    if config.frame_stack is not None:
        return config
    sources["frame_stack"] += ", in Atari games"
    return config.replace(frame_stack=1 if given or config.memory else AtariOptions.frame_stack)


def check_atari_settings(config: Config) -> None:
    """Raise an error if a setting was changed that only Atari games have."""
    for spec in dataclasses.fields(AtariOptions):
        shared = spec.name in ("max_episode_steps", "frame_stack")
        if not shared and getattr(config, spec.name) != spec.default:
            raise ProxRLError(f"{flag(spec.name)} is for Atari games, and {config.env} is not one; leave it out")


def look_at(
    env: str | Callable[..., Any], config: Config, fixed: bool, sources: dict[str, str]
) -> tuple[str | Callable[..., Any], Config]:
    """Make the first environment of a callable; if it is vectorized, or an instance, the run has as many environments as it has.

    Returns what makes the environments of the run from now on, and the config. `fixed` says that the user gave --num-envs.
    """
    ranks = 1 if config.world == "solo" else launched().size
    made = made_first(env, config.env_kwargs, max(1, config.num_envs // ranks))
    if made is None:
        return env, config
    if not made.vectorized and not isinstance(made, GivenEnv):
        return made, config
    if fixed and isinstance(made, FirstMade):
        made.resize(config.env_kwargs, max(1, config.num_envs // ranks))
    vector: Literal["native", "inprocess"] = "native" if made.vectorized else "inprocess"
    config = config.replace(num_envs=check_number(made, config, ranks) if fixed else made.num_envs * ranks)
    if isinstance(made, GivenEnv):
        check_instance(made, config, vector)
    if sources["num_envs"] not in ("flag", "Config"):
        sources["num_envs"] = "the number that the environment has"
    if config.vector == "auto":
        sources["vector"] = f"auto: the environment is {'vectorized' if made.vectorized else 'an instance'}"
    return made, config.replace(vector=vector)


def check_number(made: GivenEnv | FirstMade, config: Config, ranks: int) -> int:
    """Return --num-envs if the environment has this number of environments; raise an error otherwise."""
    if config.num_envs == made.num_envs * ranks:
        return config.num_envs
    made.close()
    each = "" if ranks == 1 else f" on each of {ranks} ranks"
    has = f"{made.num_envs} environment{'s' if made.num_envs > 1 else ''}{each}"
    other = "let it take num_envs" if isinstance(made, FirstMade) else "give a callable that makes them"
    raise ProxRLError(f"--num-envs is {config.num_envs}, but {made.__name__} has {has}; leave it out, or {other}")


def check_instance(given: GivenEnv, config: Config, vector: str) -> None:
    """Raise an error for settings that need an environment to be made, if an instance is given."""
    if config.vector not in ("auto", vector):
        raise ProxRLError(f"--vector {config.vector} makes environments, but an instance is given; give a callable or an id")
    needs = [name for name in ("eval_every", "capture_video") if getattr(config, name) is not None]
    if needs and not given.can_be_made_again:
        raise ProxRLError(
            f"{flag(needs[0])} needs a second environment, but an instance can't be made again; give a callable that makes it"
        )


def _read_base(file: Path | Config | None, preset: str | None) -> tuple[dict[str, Any], str]:
    """Return the settings of a file or a Config, and how they are named as a source."""
    if file is None:
        return {}, ""
    if not isinstance(file, Config):
        return read_toml(file), f"file {file}"
    if preset is not None:
        raise ProxRLError(f"a Config has all settings, so preset {preset!r} would have no effect; leave one of them out")
    return {spec.name: getattr(file, spec.name) for spec in dataclasses.fields(Config)}, "Config"


def envs_of_all_ranks(envs_per_rank: int, settings: Mapping[str, Any]) -> int:
    """Return --num-envs, given the number of environments of each rank."""
    if "num_envs" in settings:
        raise ProxRLError("--envs-per-rank and --num-envs both set the number of environments; give one of them")
    check_at_least("--envs-per-rank", envs_per_rank, 1)
    return envs_per_rank * (1 if settings.get("world") == "solo" else launched().size)


def callable_name(env: Callable[..., Any]) -> str:
    """Return module:callable of an environment's constructor, by which config.toml names it."""
    if isinstance(env, GivenEnv):
        return env.name
    module, name = getattr(env, "__module__", "env"), getattr(env, "__qualname__", type(env).__name__)
    return f"{module}:{name}"
