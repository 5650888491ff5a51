"""Combine flags, files, presets and defaults into a complete config, and record where each value comes from."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxrl.config import Config, flag
from proxrl.config.parse import parse_value, read_toml
from proxrl.config.presets import choose_preset, load_preset
from proxrl.envs.atari import AtariOptions
from proxrl.envs.registry import check_env, choose_vector
from proxrl.errors import ProxRLError, check_at_least
from proxrl.world.launcher import launched

EnvLike = str | Callable[..., Any]


@dataclass(frozen=True)
class Resolved:
    """A complete config, and the source of each of its values."""

    config: Config
    sources: dict[str, str]


def resolve(
    env: EnvLike | None,
    settings: Mapping[str, Any],
    preset: str | None = None,
    earlier: Callable[[Config], Config | None] | None = None,
    file: Path | Config | None = None,
    envs_per_rank: int | None = None,
) -> Resolved:
    """Return the complete config of a run.

    Values come from the defaults, then the preset of the environment's family, then `file`, such as a run's config.toml, then
    `settings`; later ones override earlier ones. Instead of a file, a Config may be given, which has all settings, so that no
    preset is used. `earlier` returns the config of the run that this one would resume: it keeps
    its kind of vectorization, even if a faster one has been installed since.
    """
    if envs_per_rank is not None:
        settings = {**settings, "num_envs": envs_of_all_ranks(envs_per_rank, settings)}
    base, base_source = _read_base(file, preset)
    given = {**base, **settings}
    env = given.get("env") if env is None else env
    if env is None:
        raise ProxRLError("no environment is given; name one, as in 'proxrl train CartPole-v1', or give a --config that does")
    if not isinstance(env, str) and not callable(env):
        raise ProxRLError(
            f"the environment is {env!r}, but must be an id, module:callable, or a callable that returns an environment"
        )
    family = check_env(env, str(given.get("vector", "auto")))
    env_name = env if isinstance(env, str) else callable_name(env)
    chosen = choose_preset(preset, family.preset)
    sources = {spec.name: "default" for spec in dataclasses.fields(Config)}
    sources["env"] = base_source if env == base.get("env") else "argument"
    values: dict[str, Any] = {"env": env_name}
    for name, setting in load_preset(chosen, env_name).items():
        values[name], sources[name] = setting.value, f"preset {chosen}: {setting.source}"
    for name, value in given.items():
        if name != "env":
            values[name], sources[name] = parse_value(name, value), "flag" if name in settings else base_source
    config = Config(**values)
    if config.vector == "auto":
        vector: str = choose_vector(env, config.num_envs, family, config.env_kwargs)
        sources["vector"] = "auto: fastest for this environment and number of environments"
        resumed = None if earlier is None else earlier(config)
        if resumed is not None:
            vector, sources["vector"] = resumed.vector, "auto: as in the run that is resumed"
        config = config.replace(vector=vector)
    for spec in dataclasses.fields(AtariOptions):
        if family.name != "atari" and spec.name != "max_episode_steps" and getattr(config, spec.name) != spec.default:
            raise ProxRLError(f"{flag(spec.name)} is for Atari games, and {config.env} is not one; leave it out")
    return Resolved(config.validate(), sources)


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
    module, name = getattr(env, "__module__", "env"), getattr(env, "__qualname__", type(env).__name__)
    return f"{module}:{name}"
