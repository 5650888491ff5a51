"""Settings that name code: those from somebody else must not be imported unless the user trusts them."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from proxrl.common.trust import is_remembered, is_stamped, remember, stamp
from proxrl.config.config import BONUS, ENVIRONMENT, RUN, Config, field_types
from proxrl.config.fields import OFF, flag
from proxrl.config.schedule import Schedule, names_function
from proxrl.errors import ProxRLError

KWARGS = "_kwargs"
# Of these the arguments are known: none of them is a path or the name of something to import.
HARMLESS_ENVS = re.compile(r"gymnasium\.envs\.(classic_control|toy_text|box2d)\b")
LONGEST_VALUE = 60  # of a setting in an error message


def code_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the settings, as written in a file, by which code would be imported, with the arguments of that code.

    Every setting that holds text may name code as `module:attribute`, unless it is declared as plain text. So may the arguments
    of an environment that has an ordinary id: there are ids which import what an argument names, or read a file.
    """
    found: dict[str, Any] = {}
    for spec in dataclasses.fields(Config):
        value = settings.get(spec.name)
        if Schedule in get_args(field_types()[spec.name]):
            named = any(map(names_function, _texts(value)))
        else:
            named = not spec.metadata.get("plain") and not isinstance(value, dict) and any(":" in text for text in _texts(value))
        if named:
            found[spec.name] = value
    for spec in dataclasses.fields(Config):
        owner, arguments = spec.name.removesuffix(KWARGS), settings.get(spec.name)
        if not arguments or owner == spec.name:
            continue
        env = settings.get("env") if settings.get(owner, OFF) == OFF else settings[owner]
        if owner in found or (owner in ENVIRONMENTS and _may_import(env, arguments)):
            found[spec.name] = arguments
    return found


# The settings by which environments are made, and those that only training uses. A trained policy needs neither.
ENVIRONMENT_SETTINGS = frozenset(
    spec.name for spec in dataclasses.fields(Config) if spec.metadata["group"] in ("", ENVIRONMENT) or "eval_env" in spec.name
)
TRAINING_SETTINGS = frozenset(spec.name for spec in dataclasses.fields(Config) if spec.metadata["group"] in (RUN, BONUS))
# Names of settings whose value is an environment.
ENVIRONMENTS = tuple(spec.name for spec in dataclasses.fields(Config) if spec.name in ("env", "eval_env"))


def _may_import(env: Any, arguments: Any) -> bool:
    """Return whether arguments could make an environment with an ordinary id import code or read files."""
    if isinstance(arguments, dict):
        arguments = {name: value for name, value in arguments.items() if name != "render_mode"}
    import gymnasium  # only here, so that listing runs does not wait for it

    known = gymnasium.registry.get(env) if isinstance(env, str) else None
    harmless = known is not None and HARMLESS_ENVS.match(str(known.entry_point))
    return not harmless and holds_text(arguments)


def holds_text(value: Any) -> bool:
    """Return whether there is any text in a value, by which code or a file could be named."""
    return bool(_texts(value))


def _texts(value: Any) -> list[str]:
    """Return all texts in a value of a TOML file."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in _texts(item)]


def untrusted_settings(settings: Mapping[str, Any], folder: Path, trust: bool = False) -> dict[str, Any]:
    """Return the settings of a run folder that name code, if they are not this user's; `trust` makes them so from now on."""
    code = code_settings(settings)
    if not code or is_own(folder, code):
        return {}
    if trust:
        declare_own(folder, code)
        return {}
    return code


def is_own(folder: Path, code: Mapping[str, Any]) -> bool:
    """Return whether this user made or trusts the run folder with these settings that name code."""
    return is_stamped(folder, digest(code)) or is_remembered(folder, digest(code))


def declare_own(folder: Path, code: Mapping[str, Any]) -> None:
    """Record that this user made or trusts the run folder with these settings that name code."""
    try:
        stamp(folder, digest(code))
    except OSError:  # the folder may belong to another user
        remember(folder, digest(code))


def check_file(file: Path, content: Mapping[str, Any], replaced: Collection[str], trust: bool) -> None:
    """Raise a ProxRLError if a file of settings names code and is neither trusted nor that of one's own run.

    `replaced` are settings that the user has given another value, so that the file's is not used.
    """
    code = code_settings(content)
    used = {name: value for name, value in code.items() if name not in replaced}
    if not used or is_stamped(file.parent, digest(code)) or is_remembered(file, digest(code)):
        return
    if not trust:
        raise refusal(str(file), used)
    remember(file, digest(code))


def refusal(source: str, code: Mapping[str, Any]) -> ProxRLError:
    """Return the error about settings that name code, from a run folder or a file."""
    name, value = next(iter(code.items()))
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
    return ProxRLError(
        f"{source} would run code of others: {flag(name)} {text!r} is not from a run that you made here with this version;"
        " if you trust who made it, give --trust (trust=True in Python) once"
    )


def digest(code: Mapping[str, Any]) -> str:
    """Return a digest of settings that name code."""
    text = json.dumps(code, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
