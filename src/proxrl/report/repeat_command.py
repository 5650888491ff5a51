"""Build the `proxrl train` command that repeats a run."""

import argparse
import shlex
from typing import Any

import gymnasium

from proxrl.config import Config, flag
from proxrl.config.code import untrusted_settings
from proxrl.config.flags import add_settings
from proxrl.config.parse import as_words, parse_settings
from proxrl.config.resolve import EnvLike, resolve
from proxrl.config.schedule import Schedule, names_function
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder


def repeat_command(run: RunFolder) -> str:
    """Return `proxrl train` with a flag for each setting that differs from the preset, without importing what settings name.

    The command has `--config` with the run's file instead if flags can't express the settings, if the environment is not
    installed here, so that its preset is unknown, or if somebody else's run names code, which `--config` refuses.
    """
    arguments = None
    try:
        settings = run.settings()
        if not untrusted_settings(settings, run.path):
            arguments = arguments_for(parse_settings(settings))
    except ProxRLError:
        pass
    return shlex.join(["proxrl", "train", *(arguments or ["--config", str(run.config_path)])])


def arguments_for(config: Config) -> list[str] | None:
    """Return the environment and flags that resolve to exactly this config, or None if no flags do, or only by running code."""
    if any(isinstance(value, Schedule) and names_function(value.text) for value in vars(config).values()):
        return None

    def with_flags(changes: dict[str, Any]) -> list[str]:
        return [config.env, *(word for name, value in changes.items() for word in flag_words(name, value))]

    base = resolve(without_import(config.env), {}).config
    names = [name for name in Config.__dataclass_fields__ if name not in ("env", "vector")]
    changes = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(base, name)}
    # The default of --vector depends on the number of environments, so it is compared after all other settings.
    for attempt in (changes, {"vector": config.vector, **changes}):
        if resolve_arguments(with_flags(attempt)) == config:
            return with_flags(attempt)
    return None


def resolve_arguments(arguments: list[str]) -> Config | None:
    """Return the settings of `proxrl train` with these arguments, or None if they are invalid."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("env")
    add_settings(parser.add_argument_group)
    try:
        options = vars(parser.parse_args(arguments))
        return resolve(without_import(options.pop("env")), options).config
    except (ProxRLError, argparse.ArgumentError):
        return None


def without_import(env: str) -> EnvLike:
    """Return an environment by which settings are resolved as by its name, but without importing the module of the name."""
    if ":" not in env:
        return env
    module, _, name = env.partition(":")
    if name in gymnasium.registry:  # its family, and so its preset, is that of the id
        raise ProxRLError(f"{env} needs its module")

    def stand_in() -> None:
        """Never called: only the name of an environment's constructor is used."""

    stand_in.__module__, stand_in.__qualname__ = module, name
    return stand_in


def flag_words(name: str, value: Any) -> list[str]:
    """Return a setting as words of the command line."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    words = as_words(value)
    # A value that begins with a dash would be parsed as a flag.
    return [f"{flag(name)}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [flag(name), *words]
