"""Objects by name: `module:attribute`, from installed packages or from the current folder."""

import importlib
import os
import sys
from typing import Any

from proxrl.errors import ProxRLError, one_line


def import_attribute(text: str) -> Any:
    """What `module:attribute` names; None where the module has no such attribute."""
    module_name, _, attribute = text.partition(":")
    if os.getcwd() not in sys.path:  # a console script's path lacks the folder that it was called from
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise ProxRLError(f"{text}: there is no module {module_name!r} here or among the installed packages") from None
        raise ProxRLError(f"{text}: importing {module_name!r} failed: {one_line(error)}") from error
    if module_name == "__main__" and not hasattr(module, attribute):
        raise ProxRLError(
            f"{text} was defined in a script, and only that script knows it: evaluate there, or define it in a module of its own"
        )
    return getattr(module, attribute, None)


def name_of(function: Any) -> str:
    """`module:attribute` of a callable that a run's config.toml must be able to name; refuses what can't be found again so."""
    text = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        found = import_attribute(text)
    except ProxRLError:
        found = None
    if found is not function:
        raise ProxRLError(f"{text} can't be found again by that name; define it at the top of a module")
    return text
