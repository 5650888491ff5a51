"""Helpers that start ranks by mpirun and torchrun, and callbacks and environments that every rank can import."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from commands import SUPPORT, metrics, saved
from proxrl import Callback
from proxrl.world.launcher import launched

BIN = Path(sys.executable).parent
LAUNCHERS = ("mpirun", "torchrun")
# Open MPI asks for two confirmations from root, and refuses more ranks than cores by default.
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


# Twenty iterations, with accumulated gradients and checkpoints to compare.
CARTPOLE = ("train", "CartPole-v1", "--num-envs", "8", "--rollout-steps", "16", "--num-minibatches", "4", "--epochs", "2")
CARTPOLE += (
    "--total-steps",
    "2560",
    "--compute",
    "autograd",
    "--vector",
    "inprocess",
    "--accumulate",
    "2",
    "--save-every",
    "512",
)


def launcher_words(launcher: str, ranks: int) -> list[str]:
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    mpirun = shutil.which("mpirun", path=str(BIN)) or shutil.which("mpirun")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpirun with mpi4py: pip install 'proxrl[mpi]'")
    return [mpirun, "-n", str(ranks), "--bind-to", "none"]


def start_ranks(
    launcher: str, ranks: int, *words: str, cwd: Path, flags: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """Start a launcher in its own process group; `words` are arguments of `proxrl`, or a script and its arguments."""
    program = ["-m", "proxrl", *words]
    if words[0].endswith(".py"):
        program = list(words)
    python = [] if launcher == "torchrun" else [sys.executable]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [*launcher_words(launcher, ranks), *flags, *python, *program],
        cwd=cwd,
        env={**inherited, **AS_ROOT, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_ranks_by(
    launcher: str, ranks: int, *words: str, cwd: Path, flags: tuple[str, ...] = (), seconds: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    return finish(start_ranks(launcher, ranks, *words, cwd=cwd, flags=flags, **environment), seconds)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # launchers forward it
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"still running after {seconds} s:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def ours(text: str) -> list[str]:
    """Return the lines that ProxRL wrote, without those of the launchers."""
    return [line for line in text.splitlines() if line.startswith("proxrl: ")]


def assert_alike(one: Path, other: Path) -> None:
    """Assert that two runs have the same tensors and metrics, up to rounding."""
    (tensors, state), (expected, expected_state) = saved(one), saved(other)
    assert state["iteration"] == expected_state["iteration"] >= 8
    assert state["episode_counts"] == expected_state["episode_counts"]
    recent, expected_recent = (np.array(each["recent"], dtype=float) for each in (state, expected_state))  # NaN for unknown
    assert np.allclose(recent, expected_recent, rtol=1e-3, equal_nan=True)
    for name, tensor in tensors.items():
        assert torch.allclose(tensor.double(), expected[name].double(), rtol=2e-3, atol=2e-5), name
    for line, expected_line in zip(metrics(one), metrics(other), strict=True):
        assert line == pytest.approx(expected_line, rel=0.01, abs=1e-4)


class WritePid(Callback):
    """Writes the process id of every rank to the current folder, and slows down iterations."""

    def __init__(self, seconds: float = 0.0) -> None:
        Path(f"pid{launched().rank}").write_text(str(os.getpid()))
        self.seconds = seconds

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        time.sleep(self.seconds)


class StopOne(Callback):
    """Requests a stop on one rank after some iterations."""

    def __init__(self, rank: int = 1, after: int = 2) -> None:
        self.rank, self.after = rank, after

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        if session.parts.world.rank == self.rank and session.iteration == self.after:
            session.stop_requested = True


class TerminateOne(Callback):
    """Sends SIGTERM to one rank."""

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        if session.parts.world.rank == 1 and session.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)


class Nudge(Callback):
    """Changes the parameters of one rank."""

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        if session.parts.world.rank == 1 and session.iteration == 3:
            with torch.no_grad():
                session.parts.parameters.values[0] += 1e-6


class Slow(Callback):
    """Delays one rank by several seconds."""

    def on_rollout(self, session: Any, rollout: Any) -> None:
        if session.parts.world.rank == 1 and session.iteration == 1:
            time.sleep(8)


class DieOnce(Callback):
    """Kills one rank in its third iteration, once; a file records that it has happened."""

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        died = Path("died")
        if session.parts.world.rank == 1 and session.iteration == 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class FailsOnRank(gymnasium.Env):
    """Raises an error at a step, on one rank; at step 0, in its constructor."""

    observation_space: gymnasium.Space = spaces.Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space = spaces.Discrete(2)

    def __init__(self, at: int, rank: int = 1) -> None:
        self.count, self.at, self.fails = 0, at, launched().rank == rank
        if self.fails and at == 0:
            raise RuntimeError("no wheel was delivered")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.fails and self.count == self.at:
            raise RuntimeError("the wheel came off")
        return np.zeros(2, np.float32), 1.0, False, self.count % 20 == 0, {}
