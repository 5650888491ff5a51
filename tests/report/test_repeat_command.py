"""The command that repeats a run resolves to exactly the same settings."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from proxrl.config import Config
from proxrl.config.parse import save_toml
from proxrl.config.resolve import resolve
from proxrl.report.repeat_command import arguments_for, repeat_command
from proxrl.runs.folder import RunFolder

CASES: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"seed": 3, "num_envs": 32, "total_steps": 1_000_000, "name": "it's mine"}),
    ("CartPole-v1", {"vector": "workers", "num_workers": 2, "target_kl": 0.02, "anneal_learning_rate": False}),
    ("Pendulum-v1", {"env_kwargs": {"g": 9.5, "render_mode": "rgb_array"}, "hidden_sizes": (32, 16), "log_std_init": -1e-5}),
    ("Pendulum-v1", {"clip": "linear:0.2:0.05", "max_grad_norm": None, "learning_rate": 1e-3, "normalize_rewards": True}),
]


@pytest.mark.parametrize(("env", "settings"), CASES)
def test_flags_resolve_to_the_same_config(env: str, settings: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(env, settings).config
    run = RunFolder(tmp_path)
    save_toml(config, run.config_path)
    words = shlex.split(repeat_command(run))
    assert words[:3] == ["proxrl", "train", env]
    assert config == _config_of(words[2:])


def _config_of(words: list[str]) -> Config:
    """Return the settings that `proxrl train` would use, computed independently of `repeat_command`."""
    from proxrl.cli import make_parser

    parser = make_parser("train")
    parser.check_flags(words)
    given = vars(parser.parse_args(words))
    options = {name: value for name, value in given.items() if name in {*Config.__dataclass_fields__, "envs_per_rank"}}
    return resolve(options.pop("env"), options, envs_per_rank=options.pop("envs_per_rank")).config


def test_only_settings_that_differ_from_the_preset_have_flags() -> None:
    assert arguments_for(resolve("CartPole-v1", {"seed": 4}).config) == ["CartPole-v1", "--seed", "4"]


def test_settings_that_flags_cannot_express_use_the_config_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a run")
    run.path.mkdir()
    save_toml(resolve("CartPole-v1", {"hidden_sizes": ()}).config, run.config_path)
    words = shlex.split(repeat_command(run))
    assert words == ["proxrl", "train", "--config", str(run.config_path)]
    assert resolve(None, {}, file=run.config_path).config.hidden_sizes == ()


def test_an_environment_that_is_not_installed_uses_the_config_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    save_toml(resolve("CartPole-v1", {}).config.replace(env="Nowhere-v0"), run.config_path)
    assert repeat_command(run).startswith("proxrl train --config ")
