"""Presets: settings for each family of environments.

Each `.toml` file in this folder gives values with their sources, and in its table [search] what `proxrl tune` varies. The files
in `reference/` have the values of published results. A family whose own file has such values needs no second one: its `table`
says which results they are for, as that of every reference preset does.
"""

import difflib
import tomllib
from collections.abc import Collection
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from proxrl.config.code import check_file
from proxrl.config.parse import parse_value
from proxrl.errors import ProxRLError

REFERENCE = "reference"


class Setting(NamedTuple):
    """A value of a preset and where it comes from."""

    value: Any
    source: str


def preset_names() -> list[str]:
    """Return the names of the families' presets."""
    return _names_in(resources.files(__package__))


def reference_presets() -> dict[str, str]:
    """Return the preset with published values of each family's preset that has one."""
    own = {name: name for name in preset_names() if "table" in read_preset(name)}
    return own | {name.partition("/")[2]: name for name in _references()}


def choose_preset(name: str | None, family_preset: str) -> str:
    """Return the name or file of the preset to load, given the one that was asked for and that of the environment's family."""
    if name != REFERENCE:
        return name or family_preset
    references = reference_presets()
    if family_preset not in references:
        raise ProxRLError(
            f"there are no published values for the family of the preset {family_preset};"
            f" leave out --preset, or give one of {', '.join(sorted(references.values()))}"
        )
    return references[family_preset]


def load_preset(name: str, env: str, replaced: Collection[str] = (), trust: bool = False) -> dict[str, Setting]:
    """Return the settings of a preset, given its name or file; those for this environment override the common ones.

    A file of others that names code is refused without `trust`; settings in `replaced` are not used and may name anything.
    """
    document = read_preset(name)
    settings, written = {}, {}
    by_env = document.get("env", {})
    ids = (env.rpartition("-v")[0], env)  # a table of all versions of an environment, and one of a single version
    tables: list[Any] = [document.get("values", {}), *(by_env.get(key, {}) if isinstance(by_env, dict) else None for key in ids)]
    if document.keys() - {"title", "table", "values", "env", "search"} or not all(isinstance(table, dict) for table in tables):
        raise ProxRLError(f'the preset {name} must give its settings in the tables [values] and [env."{env}"]')
    for table in tables:
        for field, entry in table.items():
            if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
                raise ProxRLError(f'the preset {name} must give {field} as {{ value = ..., source = "..." }}')
            settings[field] = Setting(parse_value(field, entry["value"]), entry["source"])
            written[field] = entry["value"]
    if name.endswith(".toml"):
        check_file(Path(name), written, replaced, trust)
    return settings


def trust_preset(file: Path, env: str) -> None:
    """Remember that this user wrote a preset file, so that it may name code."""
    load_preset(str(file), env, trust=True)


def read_preset(name: str) -> dict[str, Any]:
    """Return the content of a preset, given its name or file, as it is written."""
    if name in preset_names() or name in _references():
        text = resources.files(__package__).joinpath(*f"{name}.toml".split("/")).read_text(encoding="utf-8")
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProxRLError(f"can't read the preset {name}: {error}") from None
    else:
        known = [*preset_names(), REFERENCE]
        nearest = difflib.get_close_matches(name, [*known, *_references()], n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"use one of {', '.join(known)}, or the path of a .toml file"
        raise ProxRLError(f"there is no preset {name!r}; {advice}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProxRLError(f"the preset {name} is not valid TOML: {error}") from None


def _references() -> list[str]:
    return [f"{REFERENCE}/{name}" for name in _names_in(resources.files(__package__).joinpath(REFERENCE))]


def _names_in(folder: Traversable) -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
