"""How one setting is declared and spelled. `Config` is made of these, and flags, checks and reports read them."""

import functools
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

OFF = "off"  # how None is written on the command line and in files


def setting(
    default: Any,
    group: str,
    text: str,
    *,
    off: str = "",
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    imported: bool = False,
    plain: bool = False,
) -> Any:
    """Declare a field of `Config` with its help text, its range, and what None ("off") stands for.

    An `imported` setting names a callable as module:callable; from Python, the callable itself may be given. The text of a
    `plain` setting never names code (config/code.py).
    """
    limits = {"above": above, "least": least, "most": most}
    metadata = {"group": group, "help": text, "off": off, "imported": imported, "plain": plain, **limits}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """Return the command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def types_of(owner: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass."""
    return _types_of(owner)


@functools.cache  # needed hundreds of times per config, at milliseconds each
def _types_of(owner: type) -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(owner))


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that a field of this type accepts, with `off` if it may be None; empty if it accepts any other value."""
    literals = [option for option in (kind, *get_args(kind)) if get_origin(option) is Literal]
    words = get_args(literals[0]) if literals else ()
    return (*words, OFF) if words and type(None) in get_args(kind) else words
