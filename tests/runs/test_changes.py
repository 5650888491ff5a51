"""`--allow-change`: a resumed run with changed settings."""

import json
from pathlib import Path
from typing import Any

import pytest

import proxrl
from commands import metrics, saved
from proxrl.cli import main
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.runs.changes import ALLOWED, read_changes
from proxrl.runs.folder import RunFolder

SMALL: dict[str, Any] = {"num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "hidden_sizes": (8,)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(total_steps: int, **settings: Any) -> Path:
    return proxrl.train("CartPole-v1", **{**SMALL, **settings}, total_steps=total_steps, tensorboard=False).path


def test_a_changed_learning_rate_is_used_recorded_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    before = {"learning_rate": 1e-3, "anneal_learning_rate": False, "entropy_coef": 0.01}
    path = train(32, **before)
    with pytest.raises(ProxRLError, match=r"--learning-rate is 0.5, .* --allow-change learning_rate to change it from now on"):
        train(64, **{**before, "learning_rate": 0.5})
    allowed = ["--learning-rate", "entropy_coef"]
    train(64, **{**before, "learning_rate": 0.5, "entropy_coef": "linear:0.1:0"}, allow_change=allowed)
    assert "--learning-rate changed from 0.001 to 0.5 at step 32" in capsys.readouterr().out
    assert [line["charts/learning_rate"] for line in metrics(path)] == [1e-3, 0.5]
    assert saved(path)[1]["step"] == 64
    changes = read_changes(path / "changes.jsonl")
    assert [change[:4] for change in changes] == [
        ("entropy_coef", "0.01", "linear:0.1:0", 32),
        ("learning_rate", "0.001", "0.5", 32),
    ]
    assert RunFolder(path).config().learning_rate == 0.5
    train(96, **{**before, "learning_rate": 0.5, "entropy_coef": "linear:0.1:0"})  # now the run's own
    assert len(read_changes(path / "changes.jsonl")) == 2
    assert main(["runs"]) == main(["runs", "--json"]) == main(["report", str(path), "--episodes", "0"]) == 0
    shown = capsys.readouterr().out
    assert "finished (changed entropy_coef, learning_rate)" in shown
    assert '"before": "0.001"' in shown
    assert '"setting":"learning_rate"' in (path / "report.html").read_text()
    train(32, clobber=True)
    assert not (path / "changes.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gamma", "old discount factor"),
        ("hidden_sizes", "would not fit"),
        ("normalize_rewards", "scaled"),
        ("num_envs", "numbered by environment"),
        ("env_kwargs", "environment as it was"),
        ("learning_rat", "did you mean learning_rate"),
    ],
)
def test_other_settings_are_refused_with_the_reason(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--allow-change", name]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    with pytest.raises(ProxRLError, match=words):
        proxrl.train("CartPole-v1", allow_change=[name])


def test_a_change_that_the_saved_optimizer_does_not_fit_is_refused() -> None:
    path = train(32)
    with pytest.raises(ProxRLError, match="optimizer would not fit"):
        train(64, value_learning_rate=0.1, allow_change=["value_learning_rate"])
    assert not (path / "changes.jsonl").exists()
    assert RunFolder(path).config().value_learning_rate is None


def test_what_may_change_exists_and_damage_is_skipped(tmp_path: Path) -> None:
    assert Config.__dataclass_fields__.keys() >= ALLOWED
    line = {"setting": "clip", "before": "1", "after": "2", "step": 3, "time": "now"}
    (tmp_path / "changes.jsonl").write_text(f'{json.dumps(line)}\n{{}}\n[1]\n{"[" * 10**5}\n{{"setting":')
    assert [change.setting for change in read_changes(tmp_path / "changes.jsonl")] == ["clip"]
