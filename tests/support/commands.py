"""Helpers of the end-to-end tests: start the command, and read the run folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from proxrl.runs import checkpoint

SUPPORT = Path(__file__).parent
SMALL = ("--num-envs", "2", "--rollout-steps", "16", "--num-minibatches", "2", "--epochs", "1", "--hidden-sizes", "8")


def start(*words: str, cwd: Path, start_new_session: bool = False, **environment: str) -> subprocess.Popen[str]:
    """Start the command in its own process, which can import the modules of this folder."""
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(SUPPORT), os.environ.get("PYTHONPATH")]))
    inherited = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "PYTHONUNBUFFERED")}
    return subprocess.Popen(
        [sys.executable, "-m", "proxrl", *words],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    process = start(*words, cwd=cwd, **environment)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)


def metrics(run_folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without the metrics that depend on time."""
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("time", "charts/SPS", "charts/share_")
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in lines]


def steps(run_folder: Path) -> list[int]:
    return [line["step"] for line in metrics(run_folder)]


def saved(run_folder: Path, name: str = "latest") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return checkpoint.load(run_folder / "checkpoints" / f"{name}.safetensors")


def assert_same_checkpoint(one: Path, other: Path, name: str = "latest") -> None:
    (tensors, state), (other_tensors, other_state) = saved(one, name), saved(other, name)
    assert tensors.keys() == other_tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[key]), key
    assert state == other_state


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
