"""Plugins: callables of the user that a setting names, such as `--policy my_module:build`."""

from collections.abc import Callable
from typing import Any

from proxrl.common.imports import import_attribute
from proxrl.config import flag
from proxrl.config.calls import is_calls
from proxrl.errors import ProxRLError, one_line


def load_plugin(name: str, text: str) -> Callable[..., Any]:
    """Return the callable `text` of the setting `name`."""
    found = import_attribute(text) if all(text.partition(":")) else None
    if not callable(found):
        raise ProxRLError(f"{flag(name)} {text}: there is no such callable; it must be module:callable")
    return found  # type: ignore[no-any-return]


def build_plugin(name: str, text: str, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the plugin `text` of the setting `name` and return its result; an exception in it becomes one line."""
    build = load_plugin(name, text)
    try:
        return build(*arguments, **kwargs)
    except Exception as error:
        given = " ".join(f"{key}={value}" for key, value in kwargs.items())
        hint = f"; check {given if is_calls(name) else f'{flag(name)}-kwargs {given}'}" if kwargs else ""
        raise ProxRLError(f"{flag(name)} {text} failed: {one_line(error)}{hint}") from error
