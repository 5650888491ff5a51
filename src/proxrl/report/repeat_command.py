"""The command that repeats a run."""

import argparse
import shlex
from typing import Any

from proxrl.config import Config, flag
from proxrl.config.flags import add_settings
from proxrl.config.parse import typed
from proxrl.config.resolve import resolve
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder


def repeat_command(run: RunFolder) -> str:
    """`proxrl train` with a flag for each setting that its preset does not give; with the run's file where flags can't say it.

    The file serves as well where the environment is not installed here, so that its preset can't be known.
    """
    try:
        words = words_of(run.config())
    except ProxRLError:
        words = None
    return shlex.join(["proxrl", "train", *(words or ["--config", str(run.config_path)])])


def words_of(config: Config) -> list[str] | None:
    """The environment and the flags that resolve to this very config; None if none do."""

    def by_flags(changes: dict[str, Any]) -> list[str]:
        return [config.env, *(word for name, value in changes.items() for word in flag_words(name, value))]

    base = resolve(config.env, {}).config
    names = [name for name in Config.__dataclass_fields__ if name not in ("env", "vector")]
    changes = {name: getattr(config, name) for name in names if getattr(config, name) != getattr(base, name)}
    # Where environments run is chosen by their number, so it is compared only after all else is given.
    for attempt in (changes, {"vector": config.vector, **changes}):
        if resolved(by_flags(attempt)) == config:
            return by_flags(attempt)
    return None


def resolved(words: list[str]) -> Config | None:
    """The settings of `proxrl train` with these words; None if it refuses them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("env")
    add_settings(parser)
    try:
        options = vars(parser.parse_args(words))
        return resolve(options.pop("env"), options).config
    except (ProxRLError, argparse.ArgumentError):
        return None


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as one types it."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    words = typed(value)
    # A word that begins with a dash would be taken for a flag.
    return [f"{flag(name)}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [flag(name), *words]
