"""Rules that end a run before its step budget is spent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import proxrl
from info_envs import Goals
from proxrl.cli import main
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.runs.stop_rules import StopRules

# Iterations of 64 steps. All returns of `Goals` are 3, and a third of its episodes succeeds; after 20 episodes there is a score.
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_steps": 32,
    "num_minibatches": 2,
    "epochs": 1,
    "hidden_sizes": (8,),
    "total_steps": 640,
    "tensorboard": False,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rules_after(scores: list[float], tolerance: float = 0.1) -> StopRules:
    rules = StopRules()
    for number, score in enumerate(scores):
        rules.observe(100 * (number + 1), score, None, tolerance)
    return rules


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_plateau_does_not_depend_on_the_scale_of_rewards(scale: float) -> None:
    returns = [-10.0, 0.0, 10.0, 11.0, 12.0, 13.0]  # after a gain of 20, less than 2 is no improvement
    assert rules_after([scale * value for value in returns[:5]]).improved_step == 300
    assert rules_after([scale * value for value in returns]).improved_step == 600  # but small steps add up
    assert rules_after([scale * value for value in [5.0, 4.0, 5.0]]).improved_step == 100
    config = Config(stop_plateau=200)
    assert rules_after([scale * value for value in returns[:4]]).reason(config) is None
    assert rules_after([scale * value for value in returns[:5]]).reason(config) is not None
    assert StopRules().reason(Config(stop_plateau=1, stop_at=-1.0, stop_at_success=0.1)) is None


def test_a_checkpoint_restores_the_rules() -> None:
    rules = rules_after([1.0, 2.0])
    state = json.loads(json.dumps({"stop_rules": rules.state(), "best_by": "training"}))
    assert StopRules.restored(state, Config()) == rules
    assert StopRules.restored(state, Config(eval_every=1)) == StopRules()  # scores of other episodes
    assert StopRules.restored({}, Config()) == StopRules()
    for rules_then, words in (({"score": "high"}, "have 'high' for score"), ({"step": None}, "have None for step"), (7, "are 7")):
        with pytest.raises(ProxRLError, match=f"stop rules in the checkpoint {words}, .* use another checkpoint"):
            StopRules.restored({"stop_rules": rules_then, "best_by": "training"}, Config())


@pytest.mark.parametrize(
    ("rule", "step", "words"),
    [
        ({"stop_at": 3.0}, 64, "return 3.0 has reached --stop-at 3"),
        ({"stop_at": 3.0, "eval_every": 256, "eval_episodes": 2}, 256, "return 3.0 has reached --stop-at 3"),
        ({"stop_at_success": 0.3}, 64, r"success rate \d+% has reached --stop-at-success 0.3"),
        ({"stop_plateau": 128}, 192, r"no improvement since step 64 \(--stop-plateau 128\)"),
    ],
)
def test_a_run_ends_by_its_rule(rule: dict[str, Any], step: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train(Goals, **rule, **SMALL)
    assert (result.step, result.finished) == (step, True)
    assert re.fullmatch(words, result.finished_by or "")
    status = json.loads((result.path / "status.json").read_text())
    assert (status["state"], status["finished_by"]) == ("finished", result.finished_by)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"Done at step {step} by rule: {result.finished_by}" in printed
    again = proxrl.train(Goals, **rule, **SMALL)
    assert (again.step, again.finished, again.finished_by) == (step, True, result.finished_by)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"Already done: {result.finished_by}; another value of that flag, or off, goes on from here" in printed
    further = proxrl.train(Goals, **{**dict.fromkeys(rule), "eval_episodes": 2, "stop_at": 4.0}, **SMALL, quiet=True)
    assert (further.step, further.finished, further.finished_by) == (640, True, None)


def test_a_resumed_run_counts_on() -> None:
    proxrl.train(Goals, **{**SMALL, "total_steps": 128}, stop_plateau=192, quiet=True)
    assert proxrl.train(Goals, **SMALL, stop_plateau=192, quiet=True).step == 256


def test_a_rule_about_successes_that_nobody_reports_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    told = "--stop-at-success has no effect so far: no episode has had is_success or success"
    assert proxrl.train("CartPole-v1", **SMALL | {"total_steps": 1280, "stop_at_success": 0.5}).finished_by is None
    out = capsys.readouterr().out
    assert out.count(told) == 1
    assert StopRules().warnings(Config(stop_at_success=0.5)) == []  # no score yet
    rules = StopRules()
    rules.observe(100, 3.0, 0.25, 0.1)
    assert rules.warnings(Config(stop_at_success=0.5)) == []
    assert rules_after([3.0]).warnings(Config()) == []


def test_wrong_rules_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--stop-at", "high"], ["--stop-at-success", "2"], ["--stop-plateau", "0"]):
        assert main(["train", "CartPole-v1", *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
