"""Repeated actions and the user's wrappers: what they change, where they run, and what is said if they can't."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import proxrl
from commands import assert_same_checkpoint, metrics
from proxrl.build import build_environments
from proxrl.check import check
from proxrl.cli import main
from proxrl.config import Config
from proxrl.config.resolve import resolve
from proxrl.config.wrappers import load_wrapping
from proxrl.envs.atari import AtariOptions
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.report.repeat_command import repeat_command
from proxrl.runs.folder import RunFolder
from proxrl.session import Session
from wrapped_envs import Append, Ticker, Times

TINY: dict[str, Any] = {"num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 32}
TINY |= {"hidden_sizes": (8,), "quiet": True, "tensorboard": False}
WORDS = ("wrapped_envs:Append", "number=2.5", "wrapped_envs:Times", "factor=10", "wrapped_envs:Append")


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pool_of(env: Any, num_envs: int = 1, **settings: Any) -> Any:
    return build_environments(Config(env=env if isinstance(env, str) else "custom", **settings), env, num_envs)


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
def test_wrappers_apply_in_order_around_repeated_actions(vector: str) -> None:
    pool = pool_of("wrapped_envs:Ticker", 2, vector=vector, num_workers=1, wrapper=WORDS, action_repeat=3)
    try:
        assert pool.observation_space.shape == (4,)
        assert pool.reset(0).tolist() == [[0, 1, 2.5, 0.5]] * 2
        steps = []
        for _ in range(3):
            step = pool.step(np.zeros(2, np.int64))
            steps.append((float(step.reward[0]), bool(step.terminated[0]), step.episodes[:1]))
        # Rewards 1 + 2 + 3, then 4 + 5 + 6, then 7 alone, because the episode ends there, each times ten.
        assert [step[:2] for step in steps] == [(60, False), (150, False), (70, True)]
        assert step.final_obs.tolist() == [[7, 1, 2.5, 0.5]] * 2
        assert steps[2][2][0][:3] == (0, 280.0, 3)  # lengths count steps of the agent
    finally:
        pool.close()


def test_time_limits_count_steps_of_the_agent() -> None:
    for env, limit in (("CartPole-v1", 5), (lambda: Ticker(99), 5)):
        pool = pool_of(env, vector="inprocess", action_repeat=2, max_episode_steps=limit)
        pool.reset(0)
        lengths = [step.episodes[0].length for step in (pool.step(np.array([n % 2])) for n in range(5)) if step.episodes]
        assert lengths == [5]
        pool.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"wrapper": ("wrapped_envs:breaks",)},
            "breaks failed: ValueError: the lens of CartPole.* is scratched",
        ),
        ({"wrapper": ("wrapped_envs:not_a_wrapper",)}, "--wrapper wrapped_envs:not_a_wrapper returned str, but must return"),
        ({"wrapper": ("wrapped_envs:number",)}, "wrapped_envs:number: there is no such callable"),
        (
            {"wrapper": ("wrapped_envs:Times", "factor=2", "note=x", "size=3")},
            "failed: TypeError: .*check its arguments factor=2",
        ),
        ({"wrapper": ("no_such_module:Wrap",)}, "no_such_module:Wrap: there is no module 'no_such_module'"),
        ({"wrapper": ("wrapped_envs:Append",), "vector": "native"}, "--wrapper needs environments that are made one by one"),
        ({"action_repeat": 2, "vector": "native"}, "--action-repeat needs .* one by one; use --vector inprocess or workers"),
    ],
)
def test_a_wrapper_that_can_not_work_gets_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message) as caught:
        pool_of("CartPole-v1", **{"vector": "inprocess", **settings})
    assert "\n" not in str(caught.value)


def test_wrappers_need_single_environments() -> None:
    pytest.importorskip("envpool")
    config = resolve("HalfCheetah-v5", {"num_envs": 16, "action_repeat": 2}).config
    assert config.vector == "inprocess"
    with pytest.raises(ProxRLError, match=r"--action-repeat needs .*; leave it out, since dm_control/cheetah-run-v0 exists only"):
        pool_of("dm_control/cheetah-run-v0", action_repeat=2)


def test_vectorized_environments_are_stacked_but_not_wrapped() -> None:
    assert pool_of(Ticker, frame_stack=2).probe(lambda env: type(env)) is Ticker  # for the checks before training
    made = partial(gymnasium.vector.SyncVectorEnv, [Ticker] * 2)
    made.__module__, made.__qualname__ = "tests", "made"  # type: ignore[attr-defined]
    run = proxrl.train(made, **TINY, frame_stack=3, name="vectorized").path
    assert proxrl.load(run).observation_space.shape == (6,)
    assert proxrl.evaluate(run, episodes=2, env=made)["deterministic"].returns == (28.0, 28.0)
    with pytest.raises(ProxRLError, match="--action-repeat needs environments that are made one by one"):
        proxrl.train(made, **TINY, action_repeat=2)
    given = proxrl.train(Ticker(), **{**TINY, "num_envs": 1}, wrapper=Append, frame_stack=2, name="given").path
    assert proxrl.evaluate(given, env=Ticker(), episodes=1)["deterministic"].returns == (28.0,)


def test_wrappers_of_atari_games_get_preprocessed_stacks() -> None:
    pytest.importorskip("ale_py")
    config = resolve("PongNoFrameskip-v4", {"wrapper": ["wrapped_envs:Times", {"factor": 3}]}).config
    assert (config.vector, config.frame_stack) == ("inprocess", 4)
    pool = build_environments(config, config.env, 1)
    assert (pool.frame_stack, pool.observation_space) == (4, AtariOptions().observation_space)
    pool.close()
    with pytest.raises(ProxRLError, match=r"not for Atari games, .*: use --frame-skip 8 instead of both"):
        pool_of("PongNoFrameskip-v4", action_repeat=2)
    crop = Config(env="PongNoFrameskip-v4", wrapper=("gymnasium.wrappers:ReshapeObservation", "shape=[2,168,84]"))
    pool = build_environments(crop, crop.env, 1)
    assert (pool.frame_stack, pool.observation_space.shape) == (1, (2, 168, 84))
    pool.close()


def test_a_run_records_its_wrappers_and_every_command_applies_them(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-envs", "2", "--rollout-steps", "8", "--num-minibatches", "2", "--epochs", "1", "--hidden-sizes", "8"]
    flags += ["--total-steps", "32", "--quiet", "--no-tensorboard", "--capture-video", "2", "--eval-every", "16"]
    changes = ["--wrapper", *WORDS[:2], "--wrapper", *WORDS[2:], "--action-repeat", "2", "--frame-stack", "3"]
    assert main(["train", "wrapped_envs:Ticker", *flags, *changes]) == 0
    run = Path("runs/wrapped_envs-Ticker/ppo/seed1")
    config = RunFolder(run).config()
    assert (config.wrapper, config.action_repeat, config.frame_stack) == (WORDS, 2, 3)
    # Python's way to say the same resumes that run.
    wrappers = [(Append, {"number": 2.5}), (Times, {"factor": 10}), Append]
    settings = {**TINY, "total_steps": 48, "wrapper": wrappers, "action_repeat": 2, "frame_stack": 3, "eval_every": 16}
    assert proxrl.train("wrapped_envs:Ticker", **settings).step == 48
    # Each episode: rewards (1 + 2) + (3 + 4) + (5 + 6) + 7, times ten, in four steps.
    assert {line["eval/episodic_return"] for line in metrics(run)} == {280.0}
    assert {line["eval/episodic_length"] for line in metrics(run)} == {4.0}
    assert proxrl.evaluate(run, episodes=2)["stochastic"].returns == (280.0, 280.0)
    recording = proxrl.record(run)
    assert (recording.returns, recording.lengths, recording.frames) == ((280.0,), (4,), 5)
    assert list(run.glob("videos/step-*.mp4"))
    assert "--wrapper" in repeat_command(RunFolder(run))
    capsys.readouterr()
    assert main(["train", "wrapped_envs:Ticker", *flags, *changes[:-1], "2"]) == 2
    assert "--frame-stack is 2, but this run was started with 3" in capsys.readouterr().err


def test_a_resumed_run_with_stacks_equals_an_uninterrupted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes last four steps, and rollouts eight, so that a resumed run continues with the same episodes."""
    settings = {**TINY, "wrapper": WORDS, "action_repeat": 2, "frame_stack": 3, "normalize_observations": True}
    settings |= {"log_info": ("time",)}
    straight = proxrl.train("wrapped_envs:Ticker", **settings, name="straight")
    report = Session.report

    def stopping(session: Any, *arguments: Any) -> None:
        report(session, *arguments)
        session.stopping = session.step == 16

    with monkeypatch.context() as patch:
        patch.setattr(Session, "report", stopping)
        assert proxrl.train("wrapped_envs:Ticker", **settings, name="resumed").step == 16
    resumed = proxrl.train("wrapped_envs:Ticker", **settings, name="resumed")
    assert_same_checkpoint(straight.path, resumed.path)
    assert metrics(straight.path) == metrics(resumed.path)
    assert metrics(straight.path)[0]["info/time"] == (2 + 4 + 6 + 7) / 4  # of the last of the repeated steps


def test_check_applies_wrappers(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Box" in check("wrapped_envs:Ticker", episodes=2).summary["observations"]
    wrapping = load_wrapping(Config(wrapper=WORDS))
    assert "(4,)" in check("wrapped_envs:Ticker", episodes=2, wrapping=wrapping).summary["observations"]
    assert main(["check", "wrapped_envs:Ticker", "--episodes", "2", "--wrapper", "wrapped_envs:breaks"]) == 2
    assert "--wrapper wrapped_envs:breaks failed" in capsys.readouterr().err
    assert main(["check", "wrapped_envs:Ticker", "--action-repeat", "0"]) == 2


def test_the_time_limit_of_an_id_is_that_of_the_environment() -> None:
    pool = make_environments("Pendulum-v1", None, 1, "inprocess", wrapping=load_wrapping(Config(action_repeat=4)))
    pool.reset(0)
    lengths = [episode.length for _ in range(60) for episode in pool.step(np.zeros((1, 1), np.float32)).episodes]
    assert lengths == [50]
    pool.close()
