"""The command that repeats a run."""

import shlex
from typing import Any

from proxrl.config import Config, flag
from proxrl.errors import ProxRLError
from proxrl.runs import RunFolder
from proxrl.settings import typed


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
    from proxrl.resolve import resolve

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
    from proxrl.cli import make_parser
    from proxrl.resolve import resolve

    try:
        options = vars(make_parser("train").parse_args(words))
        given = {name: value for name, value in options.items() if name in Config.__dataclass_fields__ and name != "env"}
        return resolve(options["env"], given).config
    except ProxRLError:
        return None


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as one types it."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    words = typed(value)
    # A word that begins with a dash would be taken for a flag.
    return [f"{flag(name)}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [flag(name), *words]
