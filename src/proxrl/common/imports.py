"""Importing objects by name, `module:attribute`, from installed packages or the current folder."""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proxrl.errors import ProxRLError, one_line


def import_attribute(text: str) -> Any:
    """Return the object named by `module:attribute`, or None if the module has no such attribute."""
    module_name, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:  # console scripts start without the current folder in sys.path
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise ProxRLError(f"{text}: there is no module {module_name!r} here or among the installed packages") from None
        raise ProxRLError(f"{text}: importing {module_name!r} failed: {one_line(error)}") from error
    if module_name == "__main__" and not hasattr(module, attribute):
        raise ProxRLError(
            f"{text} was defined in a script, and only that script can find it: evaluate there, or define it in a module"
        )
    return getattr(module, attribute, None)


def name_of(function: Any) -> str:
    """Return the name `module:attribute` of a callable, for config.toml; raise a `ProxRLError` if importing it by name fails."""
    text = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        found = import_attribute(text)
    except ProxRLError:
        found = None
    if found is not function:
        raise ProxRLError(f"{text} can't be imported by that name; define it at the top of a module")
    return text


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Import large libraries without garbage collection, which would look at their objects again and again.

    They live as long as the process, so it does not look at them afterwards either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
