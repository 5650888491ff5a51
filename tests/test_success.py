"""The success rate, from the environment's info to metrics, evaluations and status."""

import json
from pathlib import Path
from typing import Any

import pytest

import proxrl
from commands import metrics, saved
from proxrl.runs import checkpoint
from proxrl.runs.folder import RunFolder

TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 96, "hidden_sizes": (8,),
    "tensorboard": False, "quiet": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_metrics_status_and_evaluations_have_the_success_rate() -> None:
    """Episodes have 3 steps and 0, 3, 6 ... are successes. Iterations of 16 steps contain the episodes 0-4, 5-9 and 10-15."""
    result = proxrl.train("info_envs:Goals", eval_every=96, eval_episodes=6, **TINY)
    lines = metrics(result.path)
    assert [line["charts/success_rate"] for line in lines] == pytest.approx([2 / 5, 2 / 5, 2 / 6])
    assert [line.get("eval/success_rate") for line in lines] == [None, None, pytest.approx(1 / 3)]  # 3 in each of 2 environments
    assert RunFolder(result.path).read_status()["success_rate"] == pytest.approx(6 / 16)
    assert [episode[4] for episode in saved(result.path)[1]["recent"]] == [k % 3 == 0 for k in range(16) for _ in range(2)]
    scores = proxrl.evaluate(result.path, episodes=8)["deterministic"]
    assert scores.success_rate == 1.0  # one in each of 8 environments
    assert scores.summary()["success_rate"] == 1.0


def test_runs_without_successes_have_no_rate() -> None:
    result = proxrl.train("CartPole-v1", eval_every=96, eval_episodes=2, **TINY)
    assert not [name for line in metrics(result.path) for name in line if "success" in name]
    assert RunFolder(result.path).read_status()["success_rate"] is None
    assert proxrl.evaluate(result.path, episodes=2)["stochastic"].summary()["success_rate"] is None


def test_checkpoints_from_before_successes_were_known_can_be_resumed() -> None:
    result = proxrl.train("info_envs:Goals", **TINY)
    path = result.path / "checkpoints" / "latest.safetensors"
    tensors, state = checkpoint.load(path)
    state["recent"] = [episode[:4] for episode in state["recent"]]
    checkpoint.save(path, tensors, state)
    resumed = proxrl.train("info_envs:Goals", **{**TINY, "total_steps": 128})
    assert metrics(resumed.path)[-1]["charts/success_rate"] == pytest.approx(2 / 5)
    # Ten episodes whose success is known, and the older ones, whose success is not.
    known = json.loads((resumed.path / "status.json").read_text())["success_rate"]
    assert known == pytest.approx(2 / 5)
    assert [len(episode) for episode in saved(resumed.path)[1]["recent"]] == [5] * 42
