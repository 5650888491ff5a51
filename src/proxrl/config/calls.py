"""Settings that name several callables: each is module:callable, or a built-in name, followed by its keyword arguments as
key=value. `--wrapper`, `--bonus`, `--learner` and `--advantage` are such settings.

`Config` stores exactly these words, so that they read alike on the command line and in config.toml.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from proxrl.common.imports import name_of
from proxrl.config.fields import flag
from proxrl.errors import ProxRLError

FORM = "module:callable, then its arguments as key=value"
# What a setting accepts beside module:callable.
BUILT_IN: dict[str, tuple[str, ...]] = {"wrapper": (), "bonus": ("icm", "rnd"), "learner": (), "advantage": ()}


class Call(NamedTuple):
    """A callable by name, and its keyword arguments."""

    name: str
    kwargs: dict[str, Any]


def parse_calls(setting: str, words: Iterable[str] | None) -> list[Call]:
    """Return what the words of a setting describe, in their order."""
    known = BUILT_IN[setting]
    form = f"{' or '.join(known)}, or {FORM}" if known else FORM
    calls: list[Call] = []
    for word in words or ():
        key, equals, text = word.partition("=")
        if not equals and (all(word.partition(":")) or word in known):
            calls.append(Call(word, {}))
        elif not equals:
            raise ProxRLError(f"{flag(setting)} takes {form}, not {word!r} (the environment comes before the flags)")
        elif not calls or not key:
            raise ProxRLError(f"{flag(setting)} begins with {word!r}, but takes {form}")
        else:
            calls[-1].kwargs[key] = _value(text)
    return calls


def call_words(setting: str, given: Any) -> tuple[str, ...]:
    """Return a setting as words: from words, or from Python callables, each alone or with a dict of its arguments after it."""
    calls = parse_calls(setting, _words(setting, given))
    return tuple(word for call in calls for word in (call.name, *_words(setting, call.kwargs)))


def is_calls(name: str) -> bool:
    """Return whether a setting is made of such words."""
    return name in BUILT_IN


def _words(setting: str, given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, dict):
        for key, value in given.items():
            yield f"{key}={_text(setting, key, value)}"
    elif isinstance(given, functools.partial) and not given.args:
        yield from _words(setting, (given.func, given.keywords))
    elif callable(given):
        yield name_of(given)
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _words(setting, part)
    else:
        raise ProxRLError(f"{flag(setting)} is {given!r}, but must be a callable or its name, with a dict of its arguments")


def _value(text: str) -> Any:
    """Return an argument: a value that is valid JSON is parsed as such, any other is text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _text(setting: str, key: str, value: Any) -> str:
    """Return the text that `_value` reads as this value."""
    if isinstance(value, str) and _value(value) == value:
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise ProxRLError(
            f"{flag(setting)} {key}={value!r} can't be kept in config.toml, which holds text, numbers, booleans, lists and"
            f" tables; leave it out, or set it in a {setting} of your own"
        ) from None
