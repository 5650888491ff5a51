"""The words of --wrapper, what Python may give instead, and the stacks that config.toml of older versions record."""

import functools
from pathlib import Path
from typing import Any

import pytest

from proxrl.config import Config
from proxrl.config.calls import Call, parse_calls
from proxrl.config.code import code_settings
from proxrl.config.parse import parse_settings, parse_value, read_toml, save_toml
from proxrl.config.resolve import resolve
from proxrl.errors import ProxRLError
from wrapped_envs import Append, Times


def loaded(path: Path) -> Config:
    return parse_settings(read_toml(path)).validate()


WORDS = ("wrapped_envs:Append", "number=2.5", "wrapped_envs:Times", "factor=10", "note=a b")


@pytest.mark.parametrize(
    "given",
    [
        list(WORDS),
        [Append, {"number": 2.5}, Times, {"factor": 10, "note": "a b"}],
        [(Append, {"number": 2.5}), ("wrapped_envs:Times", {"factor": 10, "note": "a b"})],
        (functools.partial(Append, number=2.5), functools.partial(Times, factor=10, note="a b")),
        ["wrapped_envs:Append", "number=2.50", "wrapped_envs:Times", "factor=10", 'note="a b"'],
    ],
)
def test_all_ways_to_write_wrappers_are_the_same_setting(given: Any, tmp_path: Path) -> None:
    words = parse_value("wrapper", given)
    assert words == WORDS
    calls = [
        Call("wrapped_envs:Append", {"number": 2.5}),
        Call("wrapped_envs:Times", {"factor": 10, "note": "a b"}),
    ]
    assert parse_calls("wrapper", words) == calls
    save_toml(Config(wrapper=words), tmp_path / "config.toml")
    assert loaded(tmp_path / "config.toml").wrapper == WORDS


def test_one_wrapper_none_and_text_that_looks_like_a_number() -> None:
    assert parse_value("wrapper", Append) == ("wrapped_envs:Append",) == parse_value("wrapper", "wrapped_envs:Append")
    assert parse_value("wrapper", ["off"]) is parse_value("wrapper", "off") is parse_value("wrapper", None) is None
    words = parse_value("wrapper", [Times, {"factor": 1, "note": "3"}])
    assert words == ("wrapped_envs:Times", "factor=1", 'note="3"')
    assert parse_calls("wrapper", words)[0].kwargs == {"factor": 1, "note": "3"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["number=2"], "begins with 'number=2', but takes module:callable, then its arguments as key=value"),
        (["wrapped_envs:Append", "CartPole-v1"], "not 'CartPole-v1' .the environment comes before the flags"),
        ([lambda env: env], "can't be imported by that name"),
        ([Append, {"number": object()}], "number=<object .* can't be kept in config.toml"),
        (3, "--wrapper is 3, but must be a callable or its name"),
    ],
)
def test_what_is_not_a_wrapper_is_refused_with_one_line(given: Any, message: str) -> None:
    with pytest.raises(ProxRLError, match=message):
        parse_value("wrapper", given)
    with pytest.raises(ProxRLError, match="begins with"):
        Config(wrapper=("a=1",)).validate()


def test_stacks_in_files_of_older_versions(tmp_path: Path) -> None:
    """They recorded frame_stack = 4 for every environment, but stacked only Atari games."""
    path = tmp_path / "config.toml"

    def written(env: str, stack: int) -> Config:
        save_toml(Config(env=env, frame_stack=stack), path)
        new = ("wrapper =", "action_repeat =", "eval_env =", "eval_env_kwargs =")
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(new)))
        return loaded(path)

    assert written("CartPole-v1", 4).frame_stack is None
    assert resolve(None, {}, file=path).config.frame_stack is None
    assert written("my_module:make", 4).frame_stack is None
    assert [written(env, 2).frame_stack for env in ("ALE/Pong-v5", "PongNoFrameskip-v4")] == [2, 2]
    path.write_text('env = "CartPole-v1"\nframe_stack = 4\n')  # by hand, in today's terms
    assert loaded(path).frame_stack == 4
    save_toml(Config(frame_stack=4), path)
    assert loaded(path).frame_stack == 4


def test_atari_games_are_stacked_unless_asked_otherwise() -> None:
    pytest.importorskip("ale_py")
    for settings, stack in (({}, 4), ({"frame_stack": "off"}, 1), ({"frame_stack": 3}, 3)):
        assert resolve("ALE/Pong-v5", settings).config.frame_stack == stack
    config = Config(env="ALE/Pong-v5")
    assert resolve(None, {}, file=config).config.frame_stack == 4
    assert resolve(None, {"frame_stack": None}, file=config).config.frame_stack == 1
    assert resolve("CartPole-v1", {}).config.frame_stack is None
    # With a memory it is one frame, as in the published runs, unless another number is given.
    for settings, stack in (({"memory": "lstm"}, 1), ({"memory": "gru", "frame_stack": 4}, 4), ({"memory": "off"}, 4)):
        assert resolve("ALE/Pong-v5", settings).config.frame_stack == stack
    assert resolve(None, {"memory": "gru"}, file=Config(env="ALE/Pong-v5")).config.frame_stack == 1


def test_wrappers_and_evaluation_environments_name_code() -> None:
    code = {"wrapper": ["a.b:Wrap", "size=3"], "eval_env": "c:make", "eval_env_kwargs": {"size": 3}}
    assert code_settings({"env": "CartPole-v1", "frame_stack": 4, **code}) == code
    assert code_settings({"env": "CartPole-v1", "wrapper": "off", "eval_env": "CartPole-v0"}) == {}
