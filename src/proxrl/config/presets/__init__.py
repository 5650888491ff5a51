"""Presets: settings for each family of environments.

Each `.toml` file in this folder gives values with their sources, and in its table [search] what `proxrl tune` varies.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from proxrl.config.parse import parse_value
from proxrl.errors import ProxRLError


class Setting(NamedTuple):
    """A value of a preset and where it comes from."""

    value: Any
    source: str


def preset_names() -> list[str]:
    """Return the names of the presets that come with ProxRL."""
    folder = resources.files(__package__)
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_preset(name: str, env: str) -> dict[str, Setting]:
    """Return the settings of a preset, given its name or file; those for this environment override the common ones."""
    document = read_preset(name)
    settings = {}
    by_env = document.get("env", {})
    tables: list[Any] = [document.get("values", {}), by_env.get(env, {}) if isinstance(by_env, dict) else None]
    if document.keys() - {"title", "values", "env", "search"} or not all(isinstance(table, dict) for table in tables):
        raise ProxRLError(f'the preset {name} must give its settings in the tables [values] and [env."{env}"]')
    for table in tables:
        for field, entry in table.items():
            if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
                raise ProxRLError(f'the preset {name} must give {field} as {{ value = ..., source = "..." }}')
            settings[field] = Setting(parse_value(field, entry["value"]), entry["source"])
    return settings


def read_preset(name: str) -> dict[str, Any]:
    """Return the content of a preset, given its name or file, as it is written."""
    if name in preset_names():
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProxRLError(f"can't read the preset {name}: {error}") from None
    else:
        raise ProxRLError(f"there is no preset {name!r}; use one of {', '.join(preset_names())}, or the path of a .toml file")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProxRLError(f"the preset {name} is not valid TOML: {error}") from None
