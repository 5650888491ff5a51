"""Ranks started by mpirun and torchrun: they train like one rank, write the run once, and report errors once."""

import json
from pathlib import Path

import pytest

from commands import SUPPORT, run
from ranks import CARTPOLE, LAUNCHERS, assert_alike, ours, run_ranks_by

# With everything that ranks share: statistics of observations and rewards, normalized advantages, a KL limit, and evaluations.
# T is not divisible by the number of minibatches.
PENDULUM = ("train", "Pendulum-v1", "--num-envs", "8", "--rollout-steps", "50", "--num-minibatches", "4", "--epochs", "2")
PENDULUM += ("--normalize-observations", "--normalize-rewards", "--target-kl", "0.05", "--max-episode-steps", "40")
PENDULUM += (
    "--hidden-sizes",
    "16",
    "16",
    "--total-steps",
    "8000",
    "--eval-every",
    "2400",
    "--eval-episodes",
    "6",
    "--vector",
    "inprocess",
)
# The same with sequences, each of one environment; their shares of the minibatches differ.
MEMORY = (
    *("3200" if word == "8000" else word for word in PENDULUM),
    "--memory",
    "lstm",
    "--memory-size",
    "8",
    "--sequence-length",
    "25",
    "--name",
    "memory",
)


@pytest.fixture(scope="module")
def single_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single_rank")
    for words in (PENDULUM, CARTPOLE, MEMORY):
        assert run(*words, "--quiet", cwd=folder).returncode == 0
    return folder


@pytest.mark.parametrize(
    ("launcher", "ranks", "words"),
    [("mpirun", 2, PENDULUM), ("torchrun", 2, MEMORY), ("mpirun", 4, MEMORY), ("torchrun", 4, CARTPOLE)],
    ids=["mpirun-2", "torchrun-2-memory", "mpirun-4-memory", "torchrun-4"],
)
def test_several_ranks_train_like_one(
    launcher: str, ranks: int, words: tuple[str, ...], single_rank: Path, tmp_path: Path
) -> None:
    done = run_ranks_by(launcher, ranks, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path("runs", words[1], "memory/seed1" if words is MEMORY else "ppo/seed1")
    assert_alike(tmp_path / folder, single_rank / folder)
    assert {path.name for path in (tmp_path / folder / "checkpoints").iterdir()} == {
        path.name for path in (single_rank / folder / "checkpoints").iterdir()
    }
    # Only one rank prints and writes.
    assert done.stdout.count("Training ") == done.stdout.count("Done at step") == 1
    assert len(list((tmp_path / folder).glob("events.out.tfevents.*"))) == 1
    kind = "mpi" if launcher == "mpirun" else "torch"
    assert f"{ranks} ranks ({kind}) x {8 // ranks} envs (inprocess) x " in done.stdout


def test_a_run_can_be_resumed_with_another_number_of_ranks(tmp_path: Path) -> None:
    """A run stopped by one of two ranks and resumed by one equals an uninterrupted run."""
    words = (*CARTPOLE, "--max-episode-steps", "8", "--callback", "ranks:StopOne")
    assert run(*words, "--name", "whole", "--quiet", cwd=tmp_path, PYTHONPATH=str(SUPPORT)).returncode == 0
    done = run_ranks_by("mpirun", 2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Stopped at step 256" in done.stdout
    assert run(*words, "--quiet", cwd=tmp_path).returncode == 0
    assert_alike(tmp_path / "runs/CartPole-v1/ppo/seed1", tmp_path / "runs/CartPole-v1/whole/seed1")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_environments_that_can_not_be_divided_are_an_error_reported_once(launcher: str, tmp_path: Path) -> None:
    done = run_ranks_by(launcher, 3, "train", "CartPole-v1", "--num-envs", "8", cwd=tmp_path)
    assert done.returncode != 0
    assert len(ours(done.stderr)) == 1
    assert "--num-envs 8 can't be shared equally by 3 ranks; use 6 or 9" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_envs_per_rank(tmp_path: Path) -> None:
    words = ("train", "CartPole-v1", "--envs-per-rank", "3", "--rollout-steps", "8", "--num-minibatches", "2")
    done = run_ranks_by("mpirun", 2, *words, "--total-steps", "96", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 ranks (mpi) x 3 envs" in done.stdout
    assert "= a batch of 48, then 10 epochs x 2 minibatches of 24 = 20 optimizer steps" in done.stdout
    assert "num_envs = 6\n" in (tmp_path / "runs/CartPole-v1/ppo/seed1/config.toml").read_text()


def test_rank_0_reports_that_mpi4py_is_missing(tmp_path: Path) -> None:
    (tmp_path / "absent/mpi4py").mkdir(parents=True)
    (tmp_path / "absent/mpi4py/__init__.py").write_text("raise ImportError('No module named mpi4py')")
    done = run_ranks_by("mpirun", 2, "train", "CartPole-v1", cwd=tmp_path, PYTHONPATH=str(tmp_path / "absent"))
    assert done.returncode != 0
    (line,) = ours(done.stderr)
    assert "pip install 'proxrl[mpi]'" in line


def test_a_wrong_flag_is_reported_once(tmp_path: Path) -> None:
    done = run_ranks_by("torchrun", 2, "train", "CartPole-v1", "--epoch", "3", cwd=tmp_path)
    assert done.returncode != 0
    (line,) = ours(done.stderr)
    assert "did you mean --epochs?" in line


def test_an_environment_that_fails_on_one_rank_is_reported_once(tmp_path: Path) -> None:
    """And --clobber does not delete the old run then."""
    checkpoint = tmp_path / "runs/ranks-FailsOnRank/ppo/seed1/checkpoints/latest.safetensors"
    words = ("train", "ranks:FailsOnRank", "--num-envs", "2", "--rollout-steps", "8", "--num-minibatches", "2", "--quiet")
    assert run(*words, "--total-steps", "16", "--env-kwargs", "at=99", cwd=tmp_path).returncode == 0
    assert checkpoint.exists()
    done = run_ranks_by("mpirun", 2, *words, "--clobber", "--env-kwargs", "at=0", cwd=tmp_path)
    assert checkpoint.exists()
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert "rank 1: " in line
    assert "no wheel was delivered" in line


SCRIPT = """
import json, sys
from pathlib import Path
import proxrl
from proxrl.world.launcher import launched

def main():
    results = [
        proxrl.train("CartPole-v1", num_envs=4, rollout_steps=16, total_steps=256, seed=seed, quiet=True) for seed in (1, 2)
    ]
    Path(f"result{launched().rank}.json").write_text(json.dumps([[r.step, r.mean_return, str(r.path)] for r in results]))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_can_train_twice(launcher: str, tmp_path: Path) -> None:
    """Every rank gets the same results, from the episodes of all; ranks connect once for both runs."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run_ranks_by(launcher, 2, "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"result{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert [result[0] for result in first] == [256, 256]
    assert first[0][1] != first[1][1]


def test_solo_ranks_train_independently(tmp_path: Path) -> None:
    """Two independent runs, of which one finds the run folder locked; each reports its own errors."""
    words = ("train", "CartPole-v1", "--world", "solo", "--total-steps", "512", "--num-envs", "2", "--rollout-steps", "16")
    done = run_ranks_by("mpirun", 2, *words, "--callback", "ranks:WritePid", "--callback-kwargs", "seconds=0.2", cwd=tmp_path)
    assert "is already training in" in done.stderr
    assert "ranks (" not in done.stdout


def test_different_parameters_are_an_error_at_the_checkpoint(tmp_path: Path) -> None:
    done = run_ranks_by("mpirun", 2, *CARTPOLE, "--callback", "ranks:Nudge", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert "rank 1 has other parameters than rank 0" in line
    assert not list((tmp_path / "runs/CartPole-v1/ppo/seed1/checkpoints").iterdir())


def test_ranks_wait_for_a_slow_one(single_rank: Path, tmp_path: Path) -> None:
    done = run_ranks_by("torchrun", 2, *CARTPOLE, "--callback", "ranks:Slow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_alike(tmp_path / "runs/CartPole-v1/ppo/seed1", single_rank / "runs/CartPole-v1/ppo/seed1")
