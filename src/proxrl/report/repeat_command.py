"""Build the `proxrl train` command that repeats a run."""

import argparse
import shlex
from typing import Any

from proxrl.config import Config, flag
from proxrl.config.flags import add_settings
from proxrl.config.parse import as_words
from proxrl.config.resolve import resolve
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder


def repeat_command(run: RunFolder) -> str:
    """Return `proxrl train` with a flag for each setting that differs from the preset.

    The command has `--config` with the run's file instead if flags can't express the settings, or if the environment is not
    installed here, so that its preset is unknown.
    """
    try:
        arguments = arguments_for(run.config())
    except ProxRLError:
        arguments = None
    return shlex.join(["proxrl", "train", *(arguments or ["--config", str(run.config_path)])])


def arguments_for(config: Config) -> list[str] | None:
    """Return the environment and flags that resolve to exactly this config, or None if no flags do."""

    def with_flags(changes: dict[str, Any]) -> list[str]:
        return [config.env, *(word for name, value in changes.items() for word in flag_words(name, value))]

    base = resolve(config.env, {}).config
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
        return resolve(options.pop("env"), options).config
    except (ProxRLError, argparse.ArgumentError):
        return None


def flag_words(name: str, value: Any) -> list[str]:
    """Return a setting as words of the command line."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    words = as_words(value)
    # A value that begins with a dash would be parsed as a flag.
    return [f"{flag(name)}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [flag(name), *words]
