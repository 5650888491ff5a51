"""The settings as keyword arguments: their types, their help, and the names that other libraries have for them."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import proxrl
from proxrl.cli import main, make_parser
from proxrl.config import Config, field_types, flag
from proxrl.config.calls import is_calls
from proxrl.config.other_names import OTHER_NAMES, explain, unknown_flag, unknown_setting
from proxrl.config.schedule import Schedule
from proxrl.config.settings import Calls, Coefficient, Plugin, Settings
from proxrl.errors import ProxRLError


def accepted(name: str) -> Any:
    """Return the type of a keyword argument, given that of the field: what `parse_value` accepts for it."""
    kind = field_types()[name]
    if is_calls(name):
        return Calls | None
    if name == "init_from":
        return str | Path | None
    if Config.__dataclass_fields__[name].metadata["imported"]:
        return Plugin | None
    if Schedule in get_args(kind):
        return Coefficient | None if type(None) in get_args(kind) else Coefficient
    for option in (kind, *get_args(kind)):
        if get_origin(option) is tuple:
            lists = option | list[get_args(option)[0]]  # type: ignore[misc]
            return lists | None if type(None) in get_args(kind) else lists
    return kind


def test_the_keywords_are_the_fields_of_config_with_their_types() -> None:
    expected = {name: accepted(name) for name in field_types() if name != "env"}
    assert get_type_hints(Settings) == expected
    assert list(Settings.__annotations__) == list(expected), "in the same order, which help shows"


def test_completion_and_help_list_every_setting_of_train() -> None:
    parameters = inspect.signature(proxrl.train).parameters
    assert list(parameters)[:3] == ["env", "preset", "runs_dir"]
    assert set(Settings.__annotations__) < set(parameters)
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    text = inspect.getdoc(proxrl.train) or ""
    assert text.startswith("Train PPO on an environment")
    for name in Settings.__annotations__:
        assert f"\n  {name}: " in text, name
    assert "  gamma: discount factor (default 0.99)" in text


def test_names_of_other_libraries_lead_to_ours() -> None:
    ours = {*inspect.signature(proxrl.train).parameters}
    flags = make_parser("train").flags()
    for name, other in OTHER_NAMES.items():
        assert name not in ours, f"{name} exists, so it is never looked up"
        assert other.ours is None or other.ours in ours, name
        assert other.ours is None or flag(other.ours) in flags, name
        assert other.ours or other.note, name
        assert explain(name) in unknown_setting(name, ours)
        assert explain(name) in unknown_flag(flag(name), flags, "proxrl train")


def python_error(name: str) -> str:
    with pytest.raises(ProxRLError) as caught:
        proxrl.train("CartPole-v1", **{name: 1})
    return str(caught.value)


def tune_error(name: str) -> str:
    with pytest.raises(ProxRLError) as caught:
        proxrl.tune("CartPole-v1", **{name: 1})
    return str(caught.value)


def config_error(name: str) -> str:
    with pytest.raises(ProxRLError) as caught:
        Config(**{name: 1})
    return str(caught.value)


@pytest.mark.parametrize("error", [python_error, tune_error, config_error])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("total_timesteps", "there is no setting 'total_timesteps'; ProxRL calls it total_steps (--total-steps)"),
        ("n_steps", "rollout_steps (--rollout-steps)"),
        ("ent_coef", "entropy_coef (--entropy-coef)"),
        ("vf_coef", "SB3 does not halve it, so its 0.5 is value_coef 1.0"),
        ("batch_size", "num_minibatches = num_envs * rollout_steps / batch_size"),
        ("wrapper_kwargs", "wrapper (--wrapper): it is module:callable, and then its arguments as key=value"),
        ("use_sde", "True is gsde"),
        ("lerning_rate", "did you mean learning_rate?"),
        ("qwertyuiop", "lists them all"),
    ],
)
def test_unknown_keywords(name: str, says: str, error: Callable[[str], str], tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in error(name)
    assert list(tmp_path.iterdir()) == []


def test_unknown_keywords_may_be_options_of_train() -> None:
    assert "did you mean clobber?" in python_error("clober")
    assert "did you mean callbacks?" in python_error("calbacks")
    for name in ("callback", "logger"):
        with pytest.raises(ProxRLError, match=rf"{name} must be module:callable; give objects of object as {name}s=\["):
            proxrl.train("CartPole-v1", **{name: object()})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--total-timesteps", "1"], "there is no flag --total-timesteps; ProxRL calls it total_steps (--total-steps)"),
        (["train", "--ent_coef=1"], "entropy_coef (--entropy-coef)"),
        (["train", "--no-anneal-lr"], "anneal_learning_rate (--anneal-learning-rate)"),
        (["train", "--track"], "wandb (--wandb)"),
        (["train", "--policy-kwargs", "net_arch=[8]"], "which is not given; for net_arch, ProxRL calls it hidden_sizes"),
        (["train", "--wrapper-kwargs", "a=1"], "wrapper (--wrapper): it is module:callable, and then its arguments"),
        (["tune", "--lr", "1"], "learning_rate (--learning-rate)"),
        (["tune", "--progress-bar"], "quiet (--quiet)"),
        (["eval", "--lr", "1"], "there is no flag --lr; did you mean --help?"),
    ],
)
def test_unknown_flags(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([words[0], "CartPole-v1", *words[1:]]) == 2
    assert says in capsys.readouterr().err
