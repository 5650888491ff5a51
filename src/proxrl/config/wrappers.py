"""The words of `--wrapper`: each wrapper is module:callable, followed by its keyword arguments as key=value.

`Config` stores exactly these words, so that a run's wrappers read alike on the command line and in config.toml.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from proxrl.common.imports import name_of
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from proxrl.config.config import Config
    from proxrl.envs.wrapping import Wrapping

FORM = "module:callable, then its arguments as key=value"


class WrapperCall(NamedTuple):
    """A wrapper by name, and the keyword arguments that it is called with, after the environment."""

    name: str
    kwargs: dict[str, Any]


def parse_wrappers(words: Iterable[str]) -> list[WrapperCall]:
    """Return the wrappers that these words describe, innermost first."""
    calls: list[WrapperCall] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals and all(word.partition(":")):
            calls.append(WrapperCall(word, {}))
        elif not equals:
            raise ProxRLError(f"--wrapper takes {FORM}, not {word!r} (the environment comes before the flags)")
        elif not calls or not key:
            raise ProxRLError(f"--wrapper begins with {word!r}, but takes {FORM}")
        else:
            calls[-1].kwargs[key] = _value(text)
    return calls


def wrapper_words(given: Any) -> tuple[str, ...]:
    """Return wrappers as words: from words, or from Python callables, each alone or with a dict of its arguments after it."""
    calls = parse_wrappers(_words(given))
    return tuple(word for call in calls for word in (call.name, *_words(call.kwargs)))


def load_wrapping(config: "Config") -> "Wrapping":
    """Import the wrappers of a run, and return what is put around each of its environments."""
    from proxrl.envs.wrapping import Wrapping, load_wrapper  # not before it is needed, because it imports Gymnasium

    wrappers = tuple(load_wrapper(*call) for call in parse_wrappers(config.wrapper or ()))
    return Wrapping(config.action_repeat or 1, wrappers)


def _words(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, dict):
        for key, value in given.items():
            yield f"{key}={_text(key, value)}"
    elif isinstance(given, functools.partial) and not given.args:
        yield from _words((given.func, given.keywords))
    elif callable(given):
        yield name_of(given)
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _words(part)
    else:
        raise ProxRLError(f"--wrapper is {given!r}, but must be a callable or its name, with a dict of its arguments")


def _value(text: str) -> Any:
    """Return an argument: a value that is valid JSON is parsed as such, any other is text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _text(key: str, value: Any) -> str:
    """Return the text that `_value` reads as this value."""
    if isinstance(value, str) and _value(value) == value:
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise ProxRLError(
            f"--wrapper {key}={value!r} can't be kept in config.toml, which holds text, numbers, booleans, lists and tables;"
            " leave it out, or set it in a wrapper of your own"
        ) from None
