"""A command-line flag for each field of `Config`, so that settings are listed in one place."""

import argparse
import dataclasses
from collections.abc import Callable, Collection
from typing import Any, Protocol, get_args, get_origin

from proxrl.config.config import Config, field_types
from proxrl.config.fields import OFF, choices_of, flag
from proxrl.config.schedule import Schedule


class Group(Protocol):
    """Anything that arguments can be added to: an argparse parser, or a group of one, whose class argparse keeps private."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


def add_settings(add_group: Callable[[str], Group], left_out: Collection[str] = ()) -> dict[str, Group]:
    """Add one flag for each field of Config, in groups that `add_group` makes from their headings."""
    groups: dict[str, Group] = {}
    for spec in dataclasses.fields(Config):
        if spec.name == "env" or spec.name in left_out:
            continue
        heading = spec.metadata["group"]
        if heading not in groups:
            groups[heading] = add_group(heading)
        text = spec.metadata["help"] + describe_default(spec.default, spec.metadata["off"])
        options = _options(field_types()[spec.name], spec.metadata["imported"])
        groups[heading].add_argument(flag(spec.name), dest=spec.name, default=argparse.SUPPRESS, help=text, **options)
    return groups


def _options(kind: Any, imported: bool) -> dict[str, Any]:
    """Return the argparse options of a flag whose field has this type. Values stay text; `parse_value` converts them."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if choices_of(kind):
        return {"choices": choices_of(kind), "metavar": "|".join(choices_of(kind))}
    kinds = {kind, *get_args(kind)}
    origins = {get_origin(option) for option in kinds}
    if dict in origins:
        return {"metavar": "KEY=VALUE", "nargs": "+", "action": "extend"}  # if given twice, both count
    several = {"nargs": "+"} if tuple in origins else {}
    if imported and several:
        return {"metavar": "NAME|KEY=VALUE", "nargs": "+", "action": "extend"}
    if imported:
        return {"metavar": "NAME"}
    if Schedule in kinds:
        return {"metavar": "X|SCHEDULE"}
    return {"metavar": "NAME" if kinds & {str, tuple[str, ...]} else "X" if float in kinds else "N", **several}


def describe_default(default: Any, off: str) -> str:
    """Return the default of a setting as an addition to its help text; `off` is what None stands for."""
    if default is dataclasses.MISSING:
        return ""
    if default is None:
        return f" (default {OFF}: {off})" if off else f" (default {OFF})"
    if isinstance(default, bool):
        return f" (default {'on' if default else 'off'})"
    if isinstance(default, tuple):
        return f" (default {' '.join(map(str, default))})"
    return f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
