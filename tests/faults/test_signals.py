"""Runs that are stopped, killed, or lose a worker can be resumed, and leave no process behind."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import SMALL, SUPPORT, assert_same_checkpoint, children, is_alive, metrics, run, saved, start, steps, wait_for
from proxrl.cli import main
from proxrl.envs import registry
from proxrl.envs.workers import WorkerEnvs

WORDS = ("train", "odd_envs:Odd", *SMALL)
FOLDER = Path("runs/odd_envs-Odd/ppo/seed1")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_resumes(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Long enough to be interrupted, short enough to finish when the environment is fast again.
    words = (*WORDS, "--total-steps", "3200")
    process = start(*words, cwd=tmp_path, ODD_SECONDS="0.002")
    metrics_path = tmp_path / FOLDER / "metrics.jsonl"
    wait_for(lambda: metrics_path.exists() and metrics_path.read_bytes().count(b"\n") >= 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == "stopping after this iteration; press Ctrl-C again to stop at once\n"
    closing = out.splitlines()[-1]
    assert "the same command resumes" in closing
    step = saved(tmp_path / FOLDER)[1]["step"]
    assert 96 <= step < 3200
    assert f"Stopped at step {step:,}" in closing
    assert steps(tmp_path / FOLDER)[-1] == step

    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert f"Resuming at step {step:,}" in capfd.readouterr().out
    assert steps(tmp_path / FOLDER) == list(range(32, 3201, 32))
    assert saved(tmp_path / FOLDER)[1]["step"] == 3200


def test_the_second_interrupt_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--total-steps", "64", "--quiet"]) == 0
    before = (FOLDER / "checkpoints/latest.safetensors").read_bytes()
    process = start(*WORDS, "--total-steps", "128", cwd=tmp_path, ODD_SECONDS="5")  # iterations of minutes
    output = process.stdout
    assert output is not None
    wait_for(lambda: "Resuming" in output.readline())
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert [line.split(";")[0] for line in err.splitlines()] == ["stopping after this iteration", "proxrl: interrupted"]
    assert (FOLDER / "checkpoints/latest.safetensors").read_bytes() == before


# One process imports everything once, then forks a run for each kill.
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from commands import saved
from proxrl.cli import main

folder, words, moments = Path(sys.argv[1]), sys.argv[2:], random.Random(0)
assert main([*words, "--name", "warm", "--total-steps", "32"]) == 0
last = 0
for trial in range(15):
    pid = os.fork()
    if pid == 0:
        os._exit(main(words))
    time.sleep(moments.uniform(0.02, 0.4))
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status), f"trial {trial} ended by itself: {status}"
    latest = folder / "checkpoints/latest.safetensors"
    if latest.exists():
        step = saved(folder)[1]["step"]
        assert step >= last, "steps were lost"
        last = step
print(last)
"""


def test_a_run_can_be_killed_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", "CartPole-v1", *SMALL, "--quiet", "--save-every", "32")
    killed = tmp_path / "runs/CartPole-v1/ppo/seed1"
    path = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    arguments = [str(killed), *words, "--total-steps", "1000000"]
    done = subprocess.run(
        [sys.executable, "-c", KILLS, *arguments], env=path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    reached = int(done.stdout)
    assert reached > 0
    assert main([*words, "--total-steps", str(reached + 320)]) == 0
    assert steps(killed) == list(range(32, reached + 321, 32))
    assert not list(killed.glob("**/*.tmp"))
    for name in (killed / "checkpoints").iterdir():
        assert saved(killed, name.stem)


def test_kills_do_not_change_what_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If episodes end with rollouts, a killed and resumed run equals an uninterrupted one."""
    monkeypatch.chdir(tmp_path)
    words = ("train", "odd_envs:Odd", "--num-envs", "2", "--rollout-steps", "20", "--num-minibatches", "2", "--save-every", "40")
    words = (*words, "--total-steps", "1200", "--quiet")
    process = start(*words, cwd=tmp_path, ODD_SECONDS="0.002")
    wait_for(lambda: (FOLDER / "checkpoints/step-200.safetensors").exists())
    process.kill()
    process.communicate()
    assert main(words) == 0
    assert main([*words, "--runs-dir", "uninterrupted"]) == 0
    assert_same_checkpoint(FOLDER, Path("uninterrupted") / FOLDER.relative_to("runs"))
    assert metrics(FOLDER) == metrics(Path("uninterrupted") / FOLDER.relative_to("runs"))


def test_a_killed_worker_ends_the_run_at_once(tmp_path: Path) -> None:
    words = (*WORDS, "--total-steps", "100000", "--vector", "workers", "--num-workers", "2", "--save-every", "32", "--quiet")
    process = start(*words, cwd=tmp_path, ODD_SECONDS="0.002")
    wait_for((tmp_path / FOLDER / "checkpoints/latest.safetensors").exists)
    workers = [child for child in children(process.pid) if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    processes = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    start_time = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - start_time < 15
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "died (killed by signal 9)" in err
    wait_for(lambda: not any(map(is_alive, processes)), 5)
    assert saved(tmp_path / FOLDER)[1]["step"] >= 32


def test_a_hanging_environment_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "WorkerEnvs", functools.partial(WorkerEnvs, timeout=1.0))
    before = set(children(os.getpid()))
    words = (*WORDS, "--vector", "workers", "--num-workers", "1", "--env-kwargs", "fault=hang", "--quiet")
    assert main(words) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "worker 0 (environments 0-1) did not reply within 1 seconds" in err
    left = [
        child for child in set(children(os.getpid())) - before if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert left == []


@pytest.mark.parametrize("seconds", ["0.002", "600"])
def test_workers_exit_with_a_killed_parent(seconds: str, tmp_path: Path) -> None:
    """Even if they hang in a step."""
    process = start(
        *WORDS, "--total-steps", "100000", "--vector", "workers", "--num-workers", "2", cwd=tmp_path, ODD_SECONDS=seconds
    )
    output = process.stdout
    assert output is not None
    wait_for(lambda: "Run folder" in output.readline())
    time.sleep(0.5)
    processes = children(process.pid)
    assert len(processes) >= 2
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, processes)), 10)


def test_a_signal_reaches_the_caller_of_the_python_api(tmp_path: Path) -> None:
    """Ctrl-C ends the caller's loop over seeds, not only the current seed."""
    code = """
import proxrl
settings = dict(num_envs=2, rollout_steps=16, num_minibatches=2, quiet=True, total_steps=1_000_000)
try:
    for seed in range(3):
        proxrl.train("odd_envs:Odd", seed=seed, **settings)
except KeyboardInterrupt:
    print("stopped", seed)
"""
    path = {**os.environ, "PYTHONPATH": str(SUPPORT), "ODD_SECONDS": "0.002"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=path, stdout=subprocess.PIPE, text=True)
    metrics_path = tmp_path / "runs/odd_envs-Odd/ppo/seed0/metrics.jsonl"
    wait_for(lambda: metrics_path.exists() and metrics_path.stat().st_size)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "stopped 0\n"
    assert saved(metrics_path.parent)[1]["step"] == steps(metrics_path.parent)[-1]


def test_a_signal_before_training_starts(tmp_path: Path) -> None:
    process = start(*WORDS, cwd=tmp_path)
    wait_for(lambda: "libtorch" in Path(f"/proc/{process.pid}/maps").read_text())  # while it is importing
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert run(*WORDS, "--total-steps", "32", "--quiet", cwd=tmp_path).returncode == 0


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs Unix process groups")
def test_workers_ignore_a_signal_to_all_processes_of_a_job(tmp_path: Path) -> None:
    """As batch schedulers send it: if workers ended, the run would fail before it is saved."""
    words = (*WORDS, "--total-steps", "32000", "--vector", "workers", "--num-workers", "2")
    process = start(*words, cwd=tmp_path, ODD_SECONDS="0.005", start_new_session=True)
    metrics_path = tmp_path / FOLDER / "metrics.jsonl"
    wait_for(lambda: metrics_path.exists() and metrics_path.read_bytes().count(b"\n") >= 2)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert "the same command resumes" in out
    assert saved(tmp_path / FOLDER)[1]["step"] >= 64
