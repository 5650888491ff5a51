"""Presets: known settings, valid values, and a source for each value."""

import dataclasses
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from proxrl.config import Config
from proxrl.config.presets import choose_preset, load_preset, preset_names, reference_presets
from proxrl.config.resolve import resolve
from proxrl.envs.registry import ATARI, BOX2D, CLASSIC, DM, FAMILIES, MUJOCO, PROCGEN, Family
from proxrl.errors import ProxRLError

FIELDS = {spec.name for spec in dataclasses.fields(Config)}
ALL_PRESETS = sorted({*preset_names(), *reference_presets().values()})
DOCS = Path(__file__).parents[2] / "docs"


def tables(name: str) -> dict[str, dict[str, dict[str, object]]]:
    """Return the common settings of a preset under "", and those of single environments under their ids."""
    document = tomllib.loads(resources.files("proxrl.config.presets").joinpath(f"{name}.toml").read_text())
    assert set(document) <= {"title", "table", "values", "env", "search"}, "tables of other names would be ignored silently"
    assert document["title"]
    return {"": document["values"], **document.get("env", {})}


def test_families_and_presets_match() -> None:
    assert {family.preset for family in FAMILIES} == set(preset_names())
    for family in FAMILIES:
        if family.name in preset_names():
            assert family.preset == family.name


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_every_value_names_a_field_and_a_source(name: str) -> None:
    for env, table in tables(name).items():
        assert table
        for field, entry in table.items():
            assert field in FIELDS, (env, field)
            assert set(entry) == {"value", "source"}, (env, field)
            assert isinstance(entry["source"], str), (env, field)
            assert len(entry["source"].strip()) > 3, (env, field)
            assert "measured" not in entry["source"] or name not in reference_presets().values(), "measured, so not published"
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
    assert (common["gamma"].value, pendulum["gamma"].value) == (0.98, 0.9)
    assert pendulum["clip"] == common["clip"]
    assert pendulum["normalize_rewards"].value
    assert "normalize_rewards" not in common


def test_a_table_without_a_version_is_for_every_version(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    tables = ("[values]", '[env."Hopper"]', '[env."Hopper-v4"]')
    path.write_text(
        "".join(f'{table}\ngamma = {{ value = 0.{index}, source = "a guess" }}\n' for index, table in enumerate(tables))
    )
    gammas = [load_preset(str(path), env)["gamma"].value for env in ("Ant-v5", "Hopper-v5", "Hopper-v4", "HopperHop-v1")]
    assert gammas == [0.0, 0.1, 0.2, 0.0]


@pytest.mark.parametrize("family", [CLASSIC, BOX2D, MUJOCO, DM, ATARI, PROCGEN], ids=lambda family: family.name)
def test_one_name_selects_the_published_values_of_every_family_that_has_some(family: Family) -> None:
    name = choose_preset("reference", family.preset)
    assert name in (family.preset, f"reference/{family.preset}")
    env = family.examples[0]
    resolved, named = resolve(env, {}, "reference"), resolve(env, {}, name)
    assert resolved == named
    assert resolved.sources["epochs"].startswith(f"preset {name}: ")
    for example in family.examples:
        assert Config(**{field: setting.value for field, setting in load_preset(name, example).items()}).validate()


def test_the_published_values() -> None:
    def values(env: str, *fields: str) -> tuple[object, ...]:
        config = resolve(env, {}, "reference").config
        return tuple(getattr(config, field) for field in fields)

    shape = ("total_steps", "num_envs", "rollout_steps", "num_minibatches", "epochs")
    assert values("CartPole-v1", *shape, "value_clip", "entropy_coef") == (500_000, 4, 128, 4, 4, 0.2, 0.01)
    assert values("MountainCar-v0", *shape) == (500_000, 4, 128, 4, 4)
    assert values("HalfCheetah-v4", *shape, "normalize_observations") == (1_000_000, 1, 2048, 32, 10, True)
    assert values("LunarLander-v3", *shape, "anneal_learning_rate") == (1_000_000, 16, 1024, 256, 4, False)
    assert values("BipedalWalker-v3", *shape, "clip", "normalize_rewards") == (5_000_000, 32, 2048, 1024, 10, 0.18, True)


@pytest.mark.parametrize("env", ["Taxi-v4", "odd_envs:make_short"])
def test_a_family_without_published_values_says_so_in_one_line(env: str) -> None:
    message = r"no published values .* leave out --preset, or give one of .*reference/classic"
    with pytest.raises(ProxRLError, match=message) as caught:
        resolve(env, {}, "reference")
    assert "\n" not in str(caught.value)


def test_the_docs_name_the_table_of_every_reference_preset() -> None:
    page = " ".join((DOCS / "settings.md").read_text().split())
    for family, name in reference_presets().items():
        document = tomllib.loads(resources.files("proxrl.config.presets").joinpath(f"{name}.toml").read_text())
        assert f"| `{family}` | `{name}` | {document['table']} |" in page


def test_measured_values_are_in_the_docs() -> None:
    page = (DOCS / "results.md").read_text()
    for name in preset_names():
        for env, table in tables(name).items():
            if env and any(entry["source"] == "measured: docs/results.md" for entry in table.values()):
                assert f"| {env}" in page, f"{name}.toml says that {env} is measured"


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


def test_an_unknown_preset_is_rejected_with_the_nearest_name_or_a_list() -> None:
    with pytest.raises(ProxRLError, match="use one of atari, box2d, classic"):
        load_preset("fancy", "CartPole-v1")
    for name, nearest in (("clasic", "classic"), ("refrence", "reference"), ("reference/box2", "reference/box2d")):
        with pytest.raises(ProxRLError, match=rf"there is no preset '{name}'; did you mean {nearest}\?"):
            load_preset(name, "CartPole-v1")
    with pytest.raises(ProxRLError, match="can't read"):
        load_preset("nowhere.toml", "CartPole-v1")
