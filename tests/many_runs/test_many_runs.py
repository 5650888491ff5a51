"""Several runs by one command, in real processes: results, summaries, interruptions and failures."""

import dataclasses
import json
import multiprocessing
import os
import signal
import statistics
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import job_tasks
import seeded_envs
from commands import SMALL, assert_same_checkpoint, is_alive, metrics, run, start, steps, wait_for
from proxrl.cli import main
from proxrl.common.numbers import format_number
from proxrl.config import Config
from proxrl.jobs.pool import Lost
from proxrl.log.run_lines import RunLines
from proxrl.many_runs.outcome import Outcome, closing, next_commands, opening, outcome_line, shortest_paths, summarize_seeds
from proxrl.many_runs.plan import Plan, PlannedRun
from proxrl.many_runs.reporter import cores_of
from proxrl.many_runs.run import ManyOptions, ManyTraining
from proxrl.runs.folder import RunFolder

COUNTED = ("train", "seeded_envs:Counted", *SMALL, "--no-tensorboard")
FOLDER = Path("runs/seeded_envs-Counted/ppo")
START_SECONDS = 200  # processes may start slowly on a busy machine


def status(run_folder: Path) -> dict[str, Any]:
    return json.loads((run_folder / "status.json").read_text())  # type: ignore[no-any-return]


def line_of(text: str, beginning: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(beginning)]
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Three seeds, trained by one command."""
    folder = tmp_path_factory.mktemp("many")
    process = start(*COUNTED, "--seeds", "1", "2-3", "--total-steps", "96", cwd=folder)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    return folder, out


def test_every_seed_is_trained_exactly_as_it_is_alone(
    trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 3):
        seeded_envs.Counted.made = 0  # as in a new process
        assert main([*COUNTED, "--seed", str(seed), "--total-steps", "96", "--quiet"]) == 0
        alone, many = tmp_path / FOLDER / f"seed{seed}", trained[0] / FOLDER / f"seed{seed}"
        assert many.joinpath("config.toml").read_bytes() == alone.joinpath("config.toml").read_bytes()
        assert metrics(many) == metrics(alone)
        assert_same_checkpoint(many, alone)
    assert metrics(trained[0] / FOLDER / "seed1") != metrics(trained[0] / FOLDER / "seed3")


def test_the_summary_has_the_mean_and_the_interval_over_seeds(trained: tuple[Path, str]) -> None:
    folder, out = trained
    returns = [status(folder / FOLDER / f"seed{seed}")["mean_return"] for seed in (1, 2, 3)]
    assert len(set(returns)) == 3
    # One in 27 resamples of three seeds consists of the lowest alone, so that the interval reaches to it.
    low, mean, high = (format_number(value) for value in (min(returns), statistics.mean(returns), max(returns)))
    assert line_of(out, "ppo ").split() == ["ppo", "1-3", mean, low, "to", high]
    for seed, value in zip((1, 2, 3), returns, strict=True):
        assert line_of(out, f"seed {seed}  done").startswith(f"seed {seed}  done  return {format_number(value)}  0:")
        assert "Done at step 96" in (folder / FOLDER / f"seed{seed}.log").read_text()
    assert out.splitlines()[-2:] == [f"Next: proxrl plot {FOLDER}", f"      proxrl compare {FOLDER}"]


def test_the_commands_at_the_end_work(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained[0])
    for line in trained[1].splitlines()[-2:]:
        assert main(line.removeprefix("Next:").split()[1:]) == 0
    assert Path("curves.png").exists()
    assert Path("compare.png").exists()
    assert "(3)" in capsys.readouterr().out


def test_the_same_command_trains_only_what_is_not_finished(
    trained: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained[0])
    before = (FOLDER / "seed1/checkpoints/latest.safetensors").stat().st_mtime_ns
    assert main([*COUNTED, "--seeds", "1-4", "--total-steps", "96", "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    assert line_of(out, "Already finished").startswith("Already finished: seeds 1-3; ")
    assert "seed 4  done" in out
    assert "seed 1  done" not in out
    assert line_of(out, "ppo ").split()[:2] == ["ppo", "1-4"]
    assert main([*COUNTED, "--seeds", "2", "4", "--total-steps", "96", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main([*COUNTED, "--seeds", "2", "4", "--total-steps", "96"]) == 0
    # Other seeds of that name are not part of this command.
    assert f"proxrl plot {FOLDER}/seed2 {FOLDER}/seed4" in capsys.readouterr().out
    assert (FOLDER / "seed1/checkpoints/latest.safetensors").stat().st_mtime_ns == before
    assert main([*COUNTED, "--seeds", "1-3", "--total-steps", "96", "--gamma", "0.5"]) == 2
    assert f"{FOLDER}/seed1: --gamma is 0.5, but this run was started with" in capsys.readouterr().err
    assert main([*COUNTED, "--seeds", "4-5", "--total-steps", "128", "--print-config"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        f"#   {FOLDER}/seed4: resumes at step 96",
        f"#   {FOLDER}/seed5: new",
    ]


def both_train(folder: Path) -> bool:
    return len([path for path in folder.glob(f"{FOLDER}/*/metrics.jsonl") if path.read_text().count("\n") > 1]) == 2


def test_a_signal_saves_all_runs_and_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*COUNTED, "--seeds", "1-3", "--jobs", "2", "--total-steps", "960")
    # So slow that no run ends before the signals. The session that finishes them is not slowed down.
    process = start(*words, cwd=tmp_path, COUNTED_SECONDS="0.02")
    wait_for(lambda: both_train(tmp_path), START_SECONDS)
    second = run(*words, cwd=tmp_path)
    assert second.returncode == 2
    assert f"another process is training in {FOLDER}/seed1" in second.stderr
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    reached = {seed: status(tmp_path / FOLDER / f"seed{seed}") for seed in (1, 2)}
    for seed, one in reached.items():
        assert (one["state"], 64 <= one["step"] < 960) == ("stopped", True)
        assert f"seed {seed}  stopped and saved at step {one['step']}" in out
    assert "Not finished: stopped seeds 1-2; not begun seed 3. The same command resumes." in out
    assert "95% interval" not in out

    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Resuming seeds 1-2; --clobber starts over" in out
    for seed in (1, 2, 3):
        assert steps(tmp_path / FOLDER / f"seed{seed}") == list(range(32, 961, 32))
    assert f"Resuming at step {reached[1]['step']}" in (FOLDER / "seed1.log").read_text()


def test_clobber_deletes_nothing_before_a_run_begins(trained: tuple[Path, str]) -> None:
    old = {seed: (trained[0] / FOLDER / f"seed{seed}/metrics.jsonl").read_bytes() for seed in (1, 2)}
    words = (*COUNTED, "--seeds", "1-2", "--jobs", "1", "--clobber", "--total-steps", "960")
    process = start(*words, cwd=trained[0], COUNTED_SECONDS="0.02")
    metrics_path = trained[0] / FOLDER / "seed1/metrics.jsonl"
    wait_for(lambda: metrics_path.exists() and metrics_path.read_bytes()[:60] not in (b"", old[1][:60]), START_SECONDS)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Not finished: stopped seed 1; not begun seed 2. The same command without --clobber resumes." in out
    assert "--clobber has not reached seed 2: there are still the earlier runs." in out
    assert (trained[0] / FOLDER / "seed2/metrics.jsonl").read_bytes() == old[2]


def test_failing_runs_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    words = (*COUNTED, "--sweep", "env_kwargs.fault=raise,die,none", "--total-steps", "64", "--jobs", "3", "--quiet", "--debug")
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    error = line_of(done.stderr, "proxrl: error: ")
    log = FOLDER.with_name("ppo-env_kwargs.fault=die") / "seed1.log"
    died = f"env_kwargs.fault=die: its process died (exit code 9); its output is in {log}"
    assert error.startswith("proxrl: error: 2 of 3 runs failed; ")
    assert died in error
    assert "env_kwargs.fault=raise: " in error
    assert "the wheel came off" in error
    assert "in env_kwargs.fault=raise:\nTraceback" in done.stderr
    assert status(tmp_path / FOLDER.with_name("ppo-env_kwargs.fault=none") / "seed1")["state"] == "finished"
    assert status(tmp_path / FOLDER.with_name("ppo-env_kwargs.fault=raise") / "seed1")["state"] == "failed"


# Without training.


def test_a_second_signal_ends_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proxrl.many_runs.run.train_run", job_tasks.hang_instead)
    workers: list[int] = []

    def interrupt_twice() -> None:
        wait_for(lambda: len(list(FOLDER.glob("*.log"))) == 2, START_SECONDS)
        workers.extend(child.pid for child in multiprocessing.active_children() if child.pid is not None)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    assert main([*COUNTED, "--seeds", "1-3", "--jobs", "2"]) == 130
    thread.join()
    out, err = capsys.readouterr()
    assert "press Ctrl-C again to stop at once" in out
    assert err == "proxrl: interrupted; no checkpoint was damaged\n"
    assert len(workers) == 2
    assert not any(map(is_alive, workers))


def outcome(
    name: str, seed: int, mean_return: float | None, state: Any = "finished", success_rate: float | None = None
) -> Outcome:
    config = Config(name=name, seed=seed)
    run = PlannedRun(config, RunFolder(Path(f"runs/x/{name}/seed{seed}")), f"seed {seed}", finished=False, step=0)
    return Outcome(run, state, 9, mean_return, success_rate)


def test_a_run_that_dies_while_the_others_stop_has_failed() -> None:
    run = outcome("a", 1, None).run
    training = ManyTraining(Plan((run,), {}), ManyOptions(Path("runs"), quiet=True), RunLines(1, quiet=True))
    training._stopping = True
    assert training._outcome(run, Lost("exit code 0", by_itself=True)).state == "waiting"  # it had not begun
    died = training._outcome(run, Lost("killed by signal 11"))
    assert died.state == "failed"
    assert died.reason.startswith("its process died (killed by signal 11); its output is in ")


def test_summaries_are_over_finished_runs_of_a_name() -> None:
    outcomes = [outcome("a", seed, value) for seed, value in ((3, 10.0), (1, 20.0))]
    outcomes += [outcome("b", 1, -1.5), outcome("b", 2, None), outcome("b", 3, 7.0, "stopped"), outcome("c", 1, None, "failed")]
    a, b = summarize_seeds(outcomes)
    assert (a.name, a.seeds, a.mean, a.low, a.high) == ("a", (1, 3), 15.0, 10.0, 20.0)
    assert (b.name, b.seeds, b.mean) == ("b", (1,), -1.5)
    text = closing(outcomes, clobber=False)
    assert line_of(text, "a ").split() == ["a", "1,", "3", "15.0", "10.0", "to", "20.0"]
    assert line_of(text, "b ").split() == ["b", "1", "-1.5", "-", "(one", "seed)"]
    assert "stopped seed 3" in text
    assert "success" not in text
    told = closing([outcome("a", 1, 1.0, success_rate=0.25), outcome("a", 2, 2.0, success_rate=0.5), outcome("b", 1, 3.0)], False)
    assert line_of(told, "name").endswith("success rate")
    assert line_of(told, "a ").endswith("1.0 to 2.0    38%")
    assert line_of(told, "b ").endswith("-")


def test_runs_that_ended_by_a_rule_say_so() -> None:
    early = outcome("a", 1, 2.0)
    assert outcome_line(early, "0:01") == "seed 1  done at step 9 by rule  return 2.0  0:01"
    planned = early.run.config.planned_steps
    assert outcome_line(dataclasses.replace(early, step=planned), "0:01") == "seed 1  done  return 2.0  0:01"
    by_rule = dataclasses.replace(early.run, finished=True, step=9)
    spent = dataclasses.replace(outcome("a", 2, 2.0).run, finished=True, step=planned)
    text = opening([by_rule, spent], Path("runs"), None, 2)
    assert line_of(text, "Already finished by rule: ").split("; ")[0].endswith(": seed 1")
    assert "--stop flags" in line_of(text, "Already finished by rule: ")
    assert line_of(text, "Already finished: seed 2; ").count("--total-steps") == 1


def test_next_commands_name_the_fewest_folders(tmp_path: Path) -> None:
    runs = [tmp_path / "env" / name / f"seed{seed}" for name in ("a", "b") for seed in (1, 2)]
    for path in runs:
        path.mkdir(parents=True)
        (path / "config.toml").touch()
    assert shortest_paths(runs) == [tmp_path / "env"]
    assert shortest_paths(runs[:2]) == [tmp_path / "env/a"]
    assert shortest_paths(runs[1:]) == [tmp_path / "env/a/seed2", tmp_path / "env/b"]


def test_next_commands_leave_out_runs_that_logged_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, finished = outcome("a", 1, None, "failed"), outcome("a", 2, 1.0)
    for each in (failed, finished):
        each.run.folder.path.mkdir(parents=True)
        (each.run.folder.path / "config.toml").touch()
        each.run.folder.metrics_path.touch()
    assert next_commands([failed]) == ""
    finished.run.folder.metrics_path.write_text("{}\n")
    path = finished.run.folder.path
    assert next_commands([failed, finished]) == f"Next: proxrl plot {path}\n      proxrl compare {path}"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"vector": "inprocess"}, 1),
        ({"vector": "native", "env": "CartPole-v1"}, 1),
        ({"vector": "native", "env": "ALE/Pong-v5"}, 8),
        ({"vector": "envpool", "num_envs": 3}, 3),
        ({"vector": "envpool", "num_envs": 99}, 16),
        ({"vector": "workers", "num_envs": 99}, 16),
        ({"vector": "workers", "num_workers": 2}, 2),
        ({"vector": "inprocess", "device": "cuda"}, 16),
    ],
)
def test_the_cores_of_a_run_are_those_of_its_environments_or_its_network(
    settings: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = SimpleNamespace(config=Config(**{"num_envs": 8, **settings}), world=SimpleNamespace(cores=16))
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert cores_of(session) == expected
    monkeypatch.setattr("torch.get_num_threads", lambda: 5)
    assert cores_of(session) == max(expected, 5)
