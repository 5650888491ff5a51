"""When one of several ranks is killed, fails or is stopped, all end soon, files stay intact, and the run can be resumed."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from commands import metrics, saved, steps, wait_for
from ranks import LAUNCHERS, finish, ours, run_ranks_by, start_ranks

# Iterations of a few milliseconds with a checkpoint after each, so that a kill may interrupt anything.
WORDS = ("train", "CartPole-v1", "--num-envs", "4", "--rollout-steps", "16", "--num-minibatches", "4", "--epochs", "2")
WORDS += ("--hidden-sizes", "8", "--save-every", "64", "--vector", "inprocess", "--no-tensorboard")
SLOWED = ("--callback", "ranks:WritePid", "--callback-kwargs")
FOLDER = Path("runs/CartPole-v1/ppo/seed1")


def pid_of(rank: int, folder: Path) -> int:
    path = folder / f"pid{rank}"
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def lines(folder: Path) -> int:
    path = folder / FOLDER / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_one(launcher: str, rank: int, seconds: float, folder: Path, total_steps: int) -> float:
    """Start or resume a run, kill a rank after its first iteration, and return how long the others took to end."""
    for path in folder.glob("pid*"):
        path.unlink()
    before = lines(folder)
    words = (*WORDS, "--total-steps", str(total_steps), *SLOWED, "seconds=0.01")
    process = start_ranks(launcher, 2, *words, cwd=folder)
    pid = pid_of(rank, folder)
    wait_for(lambda: lines(folder) > before or process.poll() is not None)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    done = finish(process, 60)
    assert done.returncode != 0
    # The launcher may end the others by SIGTERM before they notice the loss; ranks of torch also notice it themselves.
    assert len(ours(done.stderr)) <= 1
    return time.monotonic() - killed


def assert_intact(folder: Path) -> None:
    for path in (folder / FOLDER / "checkpoints").glob("*.safetensors"):
        saved(folder / FOLDER, path.stem)  # verifies the checksum


@pytest.mark.parametrize(("launcher", "rank"), [("mpirun", 1), ("torchrun", 0)])
def test_a_killed_rank_ends_all_and_the_same_command_resumes(launcher: str, rank: int, tmp_path: Path) -> None:
    assert kill_one(launcher, rank, 0.3, tmp_path, 64 * 10_000) < 60
    assert_intact(tmp_path)
    step = saved(tmp_path / FOLDER)[1]["step"]
    assert step >= 64
    words = (*WORDS, "--total-steps", str(step + 128), *SLOWED, "seconds=0.01")
    done = run_ranks_by(launcher, 2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Resuming at step {step:,}" in done.stdout
    assert steps(tmp_path / FOLDER) == list(range(64, step + 129, 64))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ten_kills_at_random_moments(launcher: str, tmp_path: Path) -> None:
    moments = random.Random(launcher)
    slowest, last = 0.0, 0
    for _ in range(10):
        slowest = max(slowest, kill_one(launcher, moments.randrange(2), moments.uniform(0, 1), tmp_path, 64 * 10_000))
        assert_intact(tmp_path)
        step = saved(tmp_path / FOLDER)[1]["step"]
        assert step > last  # it resumed from the checkpoint
        last = step
    assert slowest < 60


def test_torchrun_restarts_a_job_after_a_lost_rank(tmp_path: Path) -> None:
    """From the last checkpoint, even with --clobber."""
    words = (*WORDS, "--total-steps", "640", "--callback", "ranks:DieOnce", "--clobber")
    done = run_ranks_by("torchrun", 2, *words, cwd=tmp_path, flags=("--max-restarts", "2"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "died").exists()
    assert "Resuming at step 128" in done.stdout  # killed in the third iteration, before it was saved
    assert steps(tmp_path / FOLDER) == list(range(64, 641, 64))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_to_all_ranks_saves_once(launcher: str, tmp_path: Path) -> None:
    """As Slurm sends it before it kills a job."""
    words = (*WORDS, "--total-steps", "640000", *SLOWED, "seconds=0.05")
    process = start_ranks(launcher, 2, *words, cwd=tmp_path)
    pids = [pid_of(rank, tmp_path) for rank in range(2)]
    wait_for(lambda: lines(tmp_path) >= 3)
    # Twice, since torchrun forwards the signal that it receives.
    for pid in pids * 2:
        os.kill(pid, signal.SIGTERM)
    done = finish(process, 60)
    step = saved(tmp_path / FOLDER)[1]["step"]
    assert f"Stopped at step {step:,}" in done.stdout
    assert done.stdout.count("Stopped at step") == 1
    assert metrics(tmp_path / FOLDER)[-1]["step"] == step
    assert done.returncode != 0


def test_a_signal_to_one_rank_stops_all(tmp_path: Path) -> None:
    words = (*WORDS, "--total-steps", "640000", *SLOWED, "seconds=0.05")
    process = start_ranks("torchrun", 2, *words, cwd=tmp_path)
    pid_of(0, tmp_path)
    wait_for(lambda: lines(tmp_path) >= 3)
    os.kill(pid_of(1, tmp_path), signal.SIGTERM)
    done = finish(process, 60)
    assert f"Stopped at step {saved(tmp_path / FOLDER)[1]['step']:,}" in done.stdout
    assert done.returncode != 0


LOOP = """
import proxrl

if __name__ == "__main__":
    for seed in (1, 2):
        proxrl.train(
            "CartPole-v1", num_envs=4, rollout_steps=16, total_steps=6400, seed=seed, quiet=True, callback="ranks:TerminateOne"
        )
"""


def test_a_signal_to_one_rank_ends_the_loops_of_all(tmp_path: Path) -> None:
    """Otherwise the others would start the next run without it."""
    (tmp_path / "loop.py").write_text(LOOP)
    done = run_ranks_by("torchrun", 2, "loop.py", cwd=tmp_path)
    assert done.returncode != 0
    assert saved(tmp_path / FOLDER)[1]["iteration"] == 2
    assert not (tmp_path / "runs/CartPole-v1/ppo/seed2").exists()
    assert not ours(done.stderr)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_error_on_one_rank_is_reported_and_ends_all(launcher: str, tmp_path: Path) -> None:
    words = (
        "train",
        "ranks:FailsOnRank",
        "--num-envs",
        "4",
        "--rollout-steps",
        "8",
        "--num-minibatches",
        "2",
        "--save-every",
        "32",
    )
    done = run_ranks_by(launcher, 2, *words, "--env-kwargs", "at=21", cwd=tmp_path)
    assert done.returncode != 0
    (line,) = (line for line in ours(done.stderr) if "the wheel came off" in line)
    assert line.startswith("proxrl: error: rank 1: environment 2 failed in step: RuntimeError: the wheel came off")
    assert "no checkpoint was damaged" in line
    assert saved(tmp_path / "runs/ranks-FailsOnRank/ppo/seed1")[1]["step"] == 64
