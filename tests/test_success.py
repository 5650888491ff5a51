"""The success rate, from the environment's info to metrics, evaluations and status."""

import json
from pathlib import Path
from typing import Any

import pytest

import proxrl
from commands import metrics, saved
from proxrl.cli import main
from proxrl.export.card import _scores
from proxrl.report.page_data import page_data
from proxrl.runs import checkpoint
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import full_name

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


def test_the_commands_show_the_rate_beside_the_return(capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train("info_envs:Goals", **{**TINY, "quiet": False})
    assert result.success_rate == pytest.approx(6 / 16)
    run = str(result.path)

    def output(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    done = capsys.readouterr().out
    evaluated = output("eval", run, "--episodes", "24")  # 3 in each of 8 environments
    listed, compared = output("runs"), output("compare", run)
    plotted = output("plot", run, "--metric", "success", "length", "--text")
    assert "Done at step 96: return 3" in done
    assert "over the last 32 episodes" in done
    assert "success rate 38%" in done
    assert evaluated.count("return 3.00 ± 0.00  success rate 33%  (min 3.00") == 2
    assert [word for word in listed.split() if word in ("success", "38%", "best")] == ["best", "success", "38%"]
    assert plotted.startswith("info_envs:Goals  success rate  ppo, 1 seed\n")
    assert "info_envs:Goals  episodic length  ppo, 1 seed\n" in plotted
    assert "Mean success rate of the same episodes (number of seeds)" in compared
    assert "33% (1)" in compared  # of the evaluation, as the return
    evaluations = json.loads((result.path / "evaluations.json").read_text())["latest"]
    assert evaluations["stochastic"]["success_rate"] == pytest.approx(1 / 3)
    (page,) = page_data([RunFolder(result.path)])["runs"]
    assert page["success_rate"] == pytest.approx(6 / 16)
    assert page["evaluations"]["latest"]["deterministic"]["success_rate"] == pytest.approx(1 / 3)
    assert "24 episodes, success rate 33%" in "\n".join(_scores("info_envs:Goals", {"stochastic": evaluations["stochastic"]}))
    assert json.loads(output("compare", run, "--json"))["tasks"][0]["success_rates"] == {"ppo": [pytest.approx(1 / 3)]}
    assert json.loads(output("runs", "--json"))[0]["success_rate"] == pytest.approx(6 / 16)


def test_metrics_have_short_names() -> None:
    logged = ["charts/episodic_return", "charts/success_rate", "losses/entropy", "eval/success_rate", "info/terms/forward"]
    names = ("return", "success", "entropy", "losses/entropy", "terms/forward", "success_rate", "nothing")
    full = ("charts/episodic_return", "charts/success_rate", "losses/entropy", "losses/entropy", "info/terms/forward")
    assert tuple(full_name(name, logged) for name in names) == (*full, "success_rate", "nothing")  # two have that ending
