"""Convert words of the command line and values of TOML files to values of `Config`, and back."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from proxrl.common.files import read_regular
from proxrl.common.imports import name_of
from proxrl.config import OFF, Config, field_types, flag
from proxrl.config.calls import call_words, is_calls
from proxrl.config.other_names import unknown_setting
from proxrl.config.schedule import FORMS, Scalar, Schedule, parse_schedule, schedule_of
from proxrl.errors import ProxRLError


def parse_value(name: str, value: Any) -> Any:
    """Return the value of a field, given a word of the command line, a value of a TOML file, or a Python object."""
    kind = field_types().get(name)
    if kind is None:
        raise ProxRLError(unknown_setting(name, field_types()))
    optional, may_be_schedule = type(None) in get_args(kind), Schedule in get_args(kind)
    if optional:
        word = value[0] if isinstance(value, list) and len(value) == 1 else value  # of a flag that accepts several words
        if word is None or (isinstance(word, str) and word.lower() in (OFF, "none")):
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if may_be_schedule:
        return _parse_scalar(name, value, optional)
    if is_calls(name):
        return call_words(name, value)
    if name in ("callback", "logger") and not isinstance(value, str) and not callable(value):
        raise ProxRLError(f"{name} must be module:callable; give objects of {type(value).__name__} as {name}s=[...]")
    if callable(value) and Config.__dataclass_fields__[name].metadata["imported"]:
        return name_of(value)
    try:
        return _parse_pairs(name, value) if get_origin(kind) is dict else _convert(kind, value)
    except (ValueError, TypeError, OverflowError):
        names = {int: "a whole number", float: "a number", bool: "true or false", tuple[int, ...]: "whole numbers"}
        expected = names.get(kind, "a table of arguments, such as { width = 3 }")
        raise ProxRLError(f"{flag(name)} is {value!r}, but must be {expected}{' or off' if optional else ''}") from None


def _parse_scalar(name: str, value: Any, optional: bool) -> Scalar:
    """Return a number, or a schedule given as text or as a function."""
    if isinstance(value, Schedule):
        return value
    if callable(value):
        return schedule_of(value)
    try:
        return float(_convert(float, value))
    except (ValueError, TypeError, OverflowError):
        if isinstance(value, str) and ":" in value:
            return parse_schedule(value)
        raise ProxRLError(f"{flag(name)} is {value!r}, but must be {FORMS}{', or off' if optional else ''}") from None


def _convert(kind: Any, value: Any) -> Any:
    """Return the value as this type; raise ValueError, TypeError or OverflowError if that is not possible."""
    if kind is int:
        number = float(str(value).replace("_", ""))  # so that 1e6 and 500_000 are both whole numbers
        if number != int(number) or isinstance(value, bool):
            raise ValueError
        return int(value) if isinstance(value, int) or str(value).isdigit() else int(number)
    if kind is float:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() not in ("true", "false"):
            raise ValueError
        return str(value).lower() == "true"
    if get_origin(kind) is tuple:
        return tuple(_convert(get_args(kind)[0], item) for item in (value if isinstance(value, list | tuple) else [value]))
    return str(value)


def _parse_pairs(name: str, words: dict[str, Any] | list[str]) -> dict[str, Any]:
    """Return key=value words as a dictionary; a value that is valid JSON is parsed as such, any other is text."""
    if isinstance(words, dict):
        return dict(words)
    pairs = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ProxRLError(f"{flag(name)} takes key=value words, not {word!r}")
        try:
            pairs[key] = json.loads(text)
        except json.JSONDecodeError:
            pairs[key] = text
    return pairs


def as_words(value: Any) -> list[str]:
    """Return a setting as the words that follow its flag on the command line."""
    if isinstance(value, tuple):
        return [str(item) for item in value]
    if isinstance(value, dict):
        return [f"{key}={json.dumps(item)}" for key, item in value.items()]
    return [OFF if value is None else str(value).lower() if isinstance(value, bool) else str(value)]


def save_toml(config: Config, path: Path) -> None:
    """Write every field to a file, which alone is enough to repeat the run."""
    lines = [f"{spec.name} = {toml_value(getattr(config, spec.name))}" for spec in dataclasses.fields(config)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def toml_value(value: Any) -> str:
    """Return a setting as written in config.toml."""
    if value is None:
        return json.dumps(OFF)
    if isinstance(value, Schedule):
        return json.dumps(str(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value) if any(sign in repr(value) for sign in ".einf") else f"{value}.0"
    # Strings, whole numbers and booleans are written as in JSON, but TOML allows no surrogate pairs and no raw DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def parse_settings(settings: Mapping[str, Any]) -> Config:
    """Return the config of settings as `read_toml` returns them, without importing anything that they name."""
    return Config(**{name: parse_value(name, value) for name, value in settings.items()})


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a file as they are written, without conversion."""
    try:
        return _upgraded(tomllib.loads(read_regular(path).decode()))
    except OSError as error:
        raise ProxRLError(f"can't read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProxRLError(f"can't read {path}: {error}") from None


def _upgraded(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a file in today's terms.

    Before `wrapper` existed, only Atari games were stacked, but every run recorded frame_stack, which was then 4.
    """
    from proxrl.envs.atari import looks_like_atari

    written_by_proxrl = {"screen_size", "rollout_steps", "seed"} <= settings.keys()
    stacked = "wrapper" in settings or not written_by_proxrl or looks_like_atari(str(settings.get("env")))
    return settings if stacked else {name: value for name, value in settings.items() if name != "frame_stack"}
