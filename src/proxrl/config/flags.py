"""A command-line flag for each field of `Config`, so that there is one list of settings."""

import argparse
import dataclasses
from collections.abc import Collection
from typing import Any, get_args, get_origin

from proxrl.config.config import OFF, Config, choices_of, field_types, flag


def add_settings(parser: argparse.ArgumentParser, left_out: Collection[str] = ()) -> dict[str, argparse._ArgumentGroup]:
    """One flag for each field of Config, under its group's heading."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    kinds = field_types()
    for spec in dataclasses.fields(Config):
        if spec.name == "env" or spec.name in left_out:
            continue
        heading = spec.metadata["group"]
        group = groups.setdefault(heading, parser.add_argument_group(heading) if heading not in groups else groups[heading])
        options: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS}
        kind, default = kinds[spec.name], spec.default
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif choices_of(kind):
            options |= {"choices": choices_of(kind), "metavar": "|".join(choices_of(kind))}
        else:
            kinds_of = {kind, *get_args(kind)}
            origins = {get_origin(option) for option in kinds_of}
            options["metavar"] = "KEY=VALUE" if dict in origins else "NAME" if kinds_of & {str, tuple[str, ...]} else "N"
            if origins & {tuple, dict}:
                options["nargs"] = "+"
            if dict in origins:
                options["action"] = "extend"  # given twice, both count
        group.add_argument(flag(spec.name), help=f"{spec.metadata['help']}{_shown_default(default)}", **options)
    return groups


def _shown_default(default: Any) -> str:
    if isinstance(default, tuple):
        return f" (default {' '.join(map(str, default))})"
    if default is None:
        return f" (default {OFF})"
    if isinstance(default, bool):
        return f" (default {'on' if default else 'off'})"
    return "" if default is dataclasses.MISSING else f" (default {default})"
