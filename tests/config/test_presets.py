"""Presets: known settings, valid values, and a source for each value."""

import dataclasses
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from proxrl.config import Config
from proxrl.config.presets import load_preset, preset_names
from proxrl.envs.registry import FAMILIES, Family
from proxrl.errors import ProxRLError

FIELDS = {spec.name for spec in dataclasses.fields(Config)}


def tables(name: str) -> dict[str, dict[str, dict[str, object]]]:
    """Return the common settings of a preset under "", and those of single environments under their ids."""
    document = tomllib.loads(resources.files("proxrl.config.presets").joinpath(f"{name}.toml").read_text())
    assert set(document) <= {"title", "values", "env", "search"}, "tables of other names would be ignored silently"
    assert document["title"]
    return {"": document["values"], **document.get("env", {})}


def test_families_and_presets_match() -> None:
    assert {family.preset for family in FAMILIES} == set(preset_names())
    for family in FAMILIES:
        if family.name in preset_names():
            assert family.preset == family.name


@pytest.mark.parametrize("name", preset_names())
def test_every_value_names_a_field_and_a_source(name: str) -> None:
    for env, table in tables(name).items():
        assert table
        for field, entry in table.items():
            assert field in FIELDS, (env, field)
            assert set(entry) == {"value", "source"}, (env, field)
            assert isinstance(entry["source"], str), (env, field)
            assert len(entry["source"].strip()) > 3, (env, field)
        settings = load_preset(name, env)
        assert table.keys() <= settings.keys()
        assert Config(**{field: setting.value for field, setting in settings.items()}).validate()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_presets_are_valid_for_the_examples_of_their_family(family: Family) -> None:
    assert family.examples
    for env in family.examples:
        settings = load_preset(family.preset, env)
        config = Config(env=env, **{field: setting.value for field, setting in settings.items()}).validate()
        assert config.minibatch_size >= 16


def test_settings_of_an_environment_override_those_of_its_family() -> None:
    common, pendulum = load_preset("classic", "CartPole-v1"), load_preset("classic", "Pendulum-v1")
    assert (common["gamma"].value, pendulum["gamma"].value) == (0.99, 0.9)
    assert pendulum["clip"] == common["clip"]
    assert (common["value_clip"].value, pendulum["value_clip"].value) == (0.2, None)


def test_a_custom_preset_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[values]\ngamma = { value = 0.5, source = "a guess" }\n')
    assert load_preset(str(path), "CartPole-v1")["gamma"].value == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[values]\ngamma = 0.5\n", "must give gamma as"),
        ('[values]\ngama = { value = 0.5, source = "x" }\n', "no setting 'gama'"),
        ('[values]\ngamma = { value = "much", source = "x" }\n', "--gamma is 'much'"),
        ("[values\n", "not valid TOML"),
    ],
)
def test_invalid_presets_are_rejected_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ProxRLError, match=message) as caught:
        load_preset(str(path), "CartPole-v1")
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_is_rejected_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(ProxRLError, match="use one of atari, box2d, classic"):
        load_preset("clasic", "CartPole-v1")
    with pytest.raises(ProxRLError, match="can't read"):
        load_preset("nowhere.toml", "CartPole-v1")
