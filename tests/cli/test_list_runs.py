"""`proxrl runs`: what is listed, and the state of runs that were killed."""

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxrl
from commands import SMALL, start, wait_for
from proxrl.cli import main
from proxrl.cli.runs import age, ranges
from proxrl.runs.evaluations import read_evaluations, save_evaluation
from proxrl.runs.folder import RunFolder
from proxrl.runs.status import summarize
from written_runs import write_run


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert main(["runs", *words]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_one_line_for_all_seeds_of_a_name_and_the_latest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(UTC)
    for seed in (1, 2, 3, 7):
        when = (now - timedelta(hours=2)).isoformat()
        write_run(tmp_path, "Old-v0", "ppo", seed, [1.0, seed], updated=when)
    write_run(tmp_path, "New-v0", "ppo", 1, [5.0, 4.0], updated=(now - timedelta(seconds=90)).isoformat(), state="stopped")
    heading, first, second = rows(capsys, str(tmp_path))
    assert heading == ["environment", "name", "seeds", "steps", "return", "best", "return", "age", "state"]
    assert first == ["New-v0", "ppo", "1", "200", "4.0", "5.0", "2", "min", "stopped"]
    assert second == ["Old-v0", "ppo", "1-3,", "7", "200", "3.25", "7.0", "2", "h", "finished"]
    assert len(rows(capsys, str(tmp_path), "--each")) == 6
    main(["runs", str(tmp_path), "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [entry["seed"] for entry in listed] == [1, 1, 2, 3, 7]
    assert listed[0]["best_return"] == 5.0


def test_the_list_agrees_with_the_result_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, num_envs=2, rollout_steps=512, total_steps=2048, quiet=True)
    main(["runs", str(tmp_path), "--json"])
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["state"], entry["step"], entry["planned_steps"]) == ("finished", 2048, 2048)
    assert entry["mean_return"] == result.mean_return
    assert entry["best_return"] == result.best_return


def test_a_run_is_running_while_its_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start("train", "CartPole-v1", *SMALL, "--total-steps", "100000000", cwd=tmp_path)
    folder = RunFolder(tmp_path / "runs/CartPole-v1/ppo/seed1")
    try:
        wait_for(lambda: summarize(folder).step > 0 if folder.metrics_path.exists() else False)
        assert folder.read_status()["state"] == "running"
        assert summarize(folder).state == "running"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert folder.read_status()["state"] == "running"  # it was killed before it could write its status
    assert summarize(folder).state == "stopped"
    step = summarize(folder).step
    assert step > 0
    monkeypatch.chdir(tmp_path)
    reason = f"ended without warning at about step {step:,}: it was killed, ran out of memory, or its environment"
    for words in (["runs"], ["runs", "--json"], ["eval", "CartPole-v1"]):
        main(words)
        assert reason in capsys.readouterr().err
    assert main(["train", "CartPole-v1", *SMALL, "--total-steps", str(step // 32 * 32 + 32)]) == 0
    assert "The session before ended without warning" in capsys.readouterr().out
    main(["runs", "--json"])
    out, err = capsys.readouterr()
    assert (json.loads(out)[0]["ended_without_warning"], err) == (False, "")


def test_evaluations_are_stored_by_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path, "Own-v0", "ppo", 1, [1.0, 2.0]))
    assert summarize(folder).evaluated_score is None
    scores = {"deterministic": {"mean": 3.0}, "stochastic": {"mean": 2.5}}
    save_evaluation(folder, "best", 100, 5, scores)
    save_evaluation(folder, "latest", 200, 5, scores)
    assert folder.checkpoint_step() == 200
    assert read_evaluations(folder).keys() == {"best", "latest"}
    assert summarize(folder).evaluated_score == 2.5
    (folder.checkpoint_path("latest")).write_bytes(b"cut")
    assert folder.checkpoint_step() is None
    assert summarize(folder).evaluated_score is None
    folder.evaluations_path.write_text("{")
    assert summarize(folder).evaluated_score is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become another user")
def test_a_killed_run_of_another_user_is_stopped(tmp_path: Path) -> None:
    folder = RunFolder(write_run(tmp_path, "Own-v0", "ppo", 1, [1.0], state="running"))
    (folder.path / "run.lock").write_text("1")
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and "pytest" in str(path):
            path.chmod(0o755)
    os.seteuid(65534)
    try:
        assert summarize(folder).state == "stopped"
    finally:
        os.seteuid(0)


def test_invalid_values_in_a_status_do_not_hide_other_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "Own-v0", "good", 1, [1.0])
    write_run(tmp_path, "Own-v0", "odd", 1, [1.0], step=None, mean_return="x", planned_steps=[], updated="yesterday")
    assert {row[1] for row in rows(capsys, str(tmp_path))[1:]} == {"good", "odd"}


def test_eval_stores_its_scores_in_the_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = proxrl.train("CartPole-v1", runs_dir=tmp_path, num_envs=2, rollout_steps=64, total_steps=128, quiet=True)
    assert main(["eval", str(result.path), "--episodes", "4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stored = read_evaluations(RunFolder(result.path))["latest"]
    assert (stored["step"], stored["stochastic"]) == (128, printed["stochastic"])


def test_runs_of_other_versions_are_listed_and_broken_ones_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_run(tmp_path, "Own-v0", "ppo", 1, [1.0])
    with open(other / "config.toml", "a") as file:
        file.write('setting_of_tomorrow = "x"\n')
    broken = write_run(tmp_path, "Own-v0", "broken", 1, [1.0])
    (broken / "config.toml").write_text("[")
    assert [row[:2] for row in rows(capsys, str(tmp_path))[1:]] == [["Own-v0", "ppo"]]


def test_ranges_and_ages() -> None:
    assert [ranges(numbers) for numbers in ([], [4], [1, 2, 3, 5, 7, 8])] == ["-", "4", "1-3, 5, 7-8"]
    assert [age(seconds) for seconds in (-1, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


def test_the_error_without_runs_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 2
    assert "proxrl train CartPole-v1" in capsys.readouterr().err


class Stop(proxrl.Callback):
    """Records the written step and the current one after each iteration, and stops after three by a numpy boolean."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        self.steps.append((session.folder.read_status()["step"], session.step))
        session.stop_requested = np.bool_(len(self.steps) == 3)


def test_the_status_of_a_running_job_is_updated_between_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxrl.session.SECONDS_BETWEEN_STATUSES", 0.0)
    callback = Stop()
    result = proxrl.train(
        "CartPole-v1", runs_dir=tmp_path, num_envs=2, rollout_steps=64, total_steps=10_000, quiet=True, callbacks=[callback]
    )
    assert callback.steps == [(0, 128), (128, 256), (256, 384)]  # the status is that of the previous iteration
    assert (result.step, result.finished) == (384, False)
