"""Plugins: callables of the user that a setting names, such as `--policy my_module:build`."""

from typing import Any

from proxrl.common.imports import import_attribute
from proxrl.config import flag
from proxrl.errors import ProxRLError, one_line


def build_plugin(name: str, text: str, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the plugin `text` of the setting `name` and return its result; an exception in it becomes one line."""
    build = import_attribute(text) if all(text.partition(":")) else None
    if not callable(build):
        raise ProxRLError(f"{flag(name)} {text}: there is no such callable; it must be module:callable")
    try:
        return build(*arguments, **kwargs)
    except Exception as error:
        hint = f"; check {flag(name)}-kwargs {' '.join(f'{key}={value}' for key, value in kwargs.items())}" if kwargs else ""
        raise ProxRLError(f"{flag(name)} {text} failed: {one_line(error)}{hint}") from error
