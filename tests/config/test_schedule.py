"""Schedules: their formulas, invalid ones, and that a run uses and logs their values."""

import json
import math
from pathlib import Path

import pytest

import proxrl
from proxrl.config import Coefficients, Config
from proxrl.config.parse import parse_settings, parse_value, read_toml, save_toml
from proxrl.config.schedule import parse_schedule
from proxrl.errors import ProxRLError

SMALL = {"num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 160}


def halving(step: int, planned_steps: int) -> float:
    return 0.2 if step < planned_steps / 2 else 0.1


@pytest.mark.parametrize(
    ("text", "step", "value"),
    [
        ("linear:0.2:0.05", 0, 0.2),
        ("linear:0.2:0.05", 500, 0.125),
        ("linear:0.2:0.05", 1000, 0.05),
        ("linear:0:1:100", 50, 0.5),
        ("linear:0:1:100", 400, 1.0),
        ("cosine:1:0", 250, 0.5 * (1 + math.cos(math.pi / 4))),
        ("cosine:1:0", 1000, 0.0),
        ("piecewise:0.3@0,0.2@100,0.1@400", 99, 0.3),
        ("piecewise:0.3@0,0.2@100,0.1@400", 100, 0.2),
        ("piecewise:0.3@0,0.2@100,0.1@400", 999, 0.1),
        ("test_schedule:halving", 499, 0.2),
        ("test_schedule:halving", 500, 0.1),
    ],
)
def test_formulas(text: str, step: int, value: float) -> None:
    assert parse_schedule(text)(step, 1000) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "linear:0.2",
        "linear:a:b",
        "linear:0.2:0.1:0",
        "linear:0.2:0.1:5:6",
        "piecewise:0.2@5",
        "piecewise:0.2@0,0.1@0",
        "piecewise:0.2",
        "quadratic:1:2",
        "no_such_module:f",
        "test_schedule:missing",
        ":",
    ],
)
def test_invalid_schedules_are_rejected_in_one_line(text: str) -> None:
    with pytest.raises(ProxRLError) as error:
        Config(clip=parse_value("clip", text)).validate()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"), [("gamma", "linear:0.9:1.5"), ("clip", "linear:-0.1:0.2"), ("learning_rate", "cosine:1:-1")]
)
def test_the_ends_of_a_schedule_are_checked_against_the_range(name: str, text: str) -> None:
    with pytest.raises(ProxRLError, match=name.replace("_", "-")):
        Config(**{name: parse_value(name, text)}).validate()


def test_values_of_a_function_are_checked_against_the_range() -> None:
    assert Config(gamma=parse_value("gamma", halving)).validate().at(0).gamma == 0.2
    with pytest.raises(ProxRLError, match="--gamma at step 0"):
        Config(gamma=parse_value("gamma", too_large)).at(0)


def test_a_function_that_can_not_be_imported_by_name_is_rejected() -> None:
    def hidden(step: int, planned_steps: int) -> float:
        return halving(step, planned_steps)

    with pytest.raises(ProxRLError, match="can't be imported by that name"):
        parse_value("gamma", hidden)


def too_large(step: int, planned_steps: int) -> float:
    return 1.0 + step + planned_steps


@pytest.mark.parametrize("name", list(Coefficients.__dataclass_fields__))
def test_every_coefficient_accepts_a_schedule_and_is_logged(name: str, tmp_path: Path) -> None:
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, **SMALL, **{name: "linear:0.5:0.1"})
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    logged = [line[f"charts/{name}"] for line in lines]
    assert logged == pytest.approx([0.5 - 0.4 * iteration / 5 for iteration in range(5)])


@pytest.mark.parametrize(
    "name", ["learning_rate", "gamma", "gae_lambda", "clip", "value_clip", "entropy_coef", "value_coef", "max_grad_norm"]
)
def test_every_schedule_changes_training(name: str, tmp_path: Path) -> None:
    """From the second iteration on, since the value in the first is the same with and without the schedule."""
    base = {**SMALL, "learning_rate": 0.01, "value_clip": 0.2, "clip": 0.02, "epochs": 4, "anneal_learning_rate": False}
    start = {"learning_rate": 0.01, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.02, "value_clip": 0.2}.get(name, 0.5)
    means = []
    for kind, value in (("plain", start), ("scheduled", f"piecewise:{start}@0,{start / 10}@32")):
        settings = {**base, "entropy_coef": 0.5, "value_coef": 0.5, name: value, "name": kind}
        result = proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, **settings)
        lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
        means.append([line["losses/entropy"] for line in lines])
    assert means[0][0] == means[1][0]
    assert means[0][2:] != means[1][2:]


def test_a_scheduled_target_kl_stops_later_updates(tmp_path: Path) -> None:
    settings = {**SMALL, "learning_rate": 0.01, "epochs": 4, "target_kl": "piecewise:10@0,1e-9@32"}
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, quiet=True, tensorboard=False, **settings)
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["losses/approx_kl"] > 1e-6
    assert all(line["losses/approx_kl"] < lines[0]["losses/approx_kl"] for line in lines[1:])


def test_config_toml_stores_schedules(tmp_path: Path) -> None:
    config = Config(clip=parse_value("clip", "linear:0.2:0.05"), gamma=parse_value("gamma", halving)).validate()
    save_toml(config, tmp_path / "config.toml")
    again = parse_settings(read_toml(tmp_path / "config.toml"))
    assert again == config
    assert again.at(0).clip == 0.2
    assert again.at(0).gamma == halving(0, 1)


def test_a_schedule_of_the_learning_rate_replaces_annealing() -> None:
    config = Config(learning_rate=parse_value("learning_rate", "linear:0.2:0.1"), total_steps=512).validate()
    assert config.at(256).learning_rate == pytest.approx(0.15)
    assert Config(total_steps=512).at(256).learning_rate == pytest.approx(Config().learning_rate / 2)  # type: ignore[operator]
