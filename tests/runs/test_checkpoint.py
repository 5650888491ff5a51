"""Checkpoints are loaded exactly or rejected in one line, and an interrupted save does not damage the previous one."""

import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from disks import file_size_limit, mounted
from proxrl.errors import ProxRLError
from proxrl.runs import checkpoint

TENSORS = {"policy.weight": torch.arange(12.0).reshape(3, 4), "count": torch.tensor(7)}
STATE = {"step": 512, "best": 1.5}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "latest.safetensors"
    checkpoint.save(path, TENSORS, STATE)
    return path


def one_line(error: pytest.ExceptionInfo[ProxRLError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_tensors_are_loaded_exactly(tmp_path: Path) -> None:
    flat = torch.randn(20)
    tensors = {
        "view.a": flat[:10].view(2, 5),
        "view.b": flat[5:],  # overlaps the one above
        "transposed": torch.randn(3, 4).T,
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "half": torch.randn(3).to(torch.bfloat16),
        "double": torch.tensor([math.nan, math.inf, -0.0], dtype=torch.float64),
        "mask": torch.tensor([True, False]),
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    checkpoint.save(tmp_path / "new" / "x.safetensors", tensors, {})
    loaded, _ = checkpoint.load(tmp_path / "new" / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(loaded[name], tensor.detach(), rtol=0, atol=0, equal_nan=True)
    loaded["view.a"].mul_(2)  # training changes tensors in place
    torch.testing.assert_close(loaded["view.b"], flat[5:], rtol=0, atol=0)


def test_state_is_loaded_exactly(tmp_path: Path) -> None:
    state = {
        "nan": math.nan, "inf": [math.inf, -math.inf], "third": 1 / 3, "large": 2**127 + 1, "none": None, "flag": True,
        "text": "ü\n\"'", "nested": {"empty": {}, "list": [1, [2.5]]},
    }  # fmt: skip
    numpy_state = {"int": np.int64(2**40), "float": np.float32(0.1), "bool": np.bool_(True), "tuple": (1, np.float64(0.2))}
    checkpoint.save(tmp_path / "x.safetensors", {}, state | numpy_state)
    _, loaded = checkpoint.load(tmp_path / "x.safetensors")
    assert math.isnan(loaded.pop("nan"))
    state.pop("nan")
    assert loaded == {**state, "int": 2**40, "float": float(np.float32(0.1)), "bool": True, "tuple": [1, 0.2]}
    assert type(loaded["bool"]) is bool


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": [0, np.zeros(2)]}}, "state['a']['b'][1] is a ndarray"),
        ({"a": torch.zeros(1)}, "state['a'] is a Tensor"),
        ({"a": {3: 1}}, "state['a'] has the key 3"),
    ],
)
def test_state_that_json_would_change_is_rejected(tmp_path: Path, state: dict[str, Any], words: str) -> None:
    with pytest.raises(ProxRLError) as error:
        checkpoint.save(tmp_path / "x.safetensors", {}, state)
    assert words in one_line(error)
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_bit_is_detected(saved: Path) -> None:
    whole = saved.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            saved.write_bytes(damaged)
            with pytest.raises(ProxRLError) as error:
                checkpoint.load(saved)
            assert str(saved) in one_line(error)


def test_every_truncation_is_detected(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(checkpoint.DamagedCheckpointError) as error:
            checkpoint.load(saved)
        assert "cut short" in one_line(error)
        assert one_line(error).endswith("use another checkpoint of that run")


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="there is no checkpoint at "):
        checkpoint.load(tmp_path / "absent.safetensors")
    with pytest.raises(ProxRLError, match="can't read the checkpoint"):
        checkpoint.load(tmp_path)


def test_safetensors_files_of_other_programs(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file(TENSORS, tmp_path / "model.safetensors", metadata)
        with pytest.raises(ProxRLError) as error:
            checkpoint.load(tmp_path / "model.safetensors")
        assert "not a ProxRL checkpoint" in one_line(error)


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_pickles_are_rejected_and_never_loaded(tmp_path: Path, writer: str) -> None:
    path, trace = tmp_path / "x.safetensors", tmp_path / "ran"
    if writer == "torch":
        torch.save(Bomb(trace), path)
    else:
        path.write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(ProxRLError) as error:
        checkpoint.load(path)
    assert "is a pickle" in one_line(error)
    assert not trace.exists()


def test_checkpoints_of_a_newer_format(tmp_path: Path) -> None:
    metadata = {"format": "proxrl-checkpoint", "version": "2", "state": json.dumps({}), "sha256": ""}
    safetensors.torch.save_file(TENSORS, tmp_path / "x.safetensors", metadata)
    with pytest.raises(ProxRLError) as error:
        checkpoint.load(tmp_path / "x.safetensors")
    assert "format 2" in one_line(error)
    assert "pip install --upgrade proxrl" in one_line(error)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KB."""
    with mounted(tmp_path / "disk", "size=64k") as folder:
        yield folder


def assert_save_fails_and_keeps_the_previous_checkpoint(path: Path) -> None:
    with pytest.raises(ProxRLError) as error:
        checkpoint.save(path, {"large": torch.zeros(50_000)}, STATE)
    assert "the last good checkpoint is unchanged" in one_line(error)
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert checkpoint.load(path)[1] == STATE


@pytest.mark.skipif(sys.platform == "win32", reason="mounts are POSIX")
def test_full_disk(tiny_disk: Path) -> None:
    path = tiny_disk / "latest.safetensors"
    checkpoint.save(path, TENSORS, STATE)
    assert_save_fails_and_keeps_the_previous_checkpoint(path)


def test_file_size_limit(saved: Path) -> None:
    with file_size_limit(100_000):
        assert_save_fails_and_keeps_the_previous_checkpoint(saved)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(ProxRLError) as error:
        checkpoint.save(tmp_path / "checkpoints" / "latest.safetensors", TENSORS, STATE)
    assert "can't write the checkpoint" in one_line(error)


# Saves as fast as it can. Tensors and state contain the same number, so a mixture of two saves can be detected.
SAVE_FOREVER = """
import os, sys, torch
from pathlib import Path
from proxrl.runs import checkpoint
torch.set_num_threads(1)
path = Path(sys.argv[1])
checkpoint.save(path, {"number": torch.zeros(300_000)}, {"number": 0})
print("ready", flush=True)
for line in sys.stdin:  # each line asks for one child that saves until it is killed
    child = os.fork()
    if child == 0:
        number = int(line)
        while True:
            number += 1
            checkpoint.save(path, {"number": torch.full((300_000,), float(number))}, {"number": number})
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are POSIX")
def test_a_kill_at_any_time_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    import signal
    import time

    path, moments = tmp_path / "latest.safetensors", random.Random(0)
    command = [sys.executable, "-c", SAVE_FOREVER, str(path)]
    interrupted, last = 0, 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin and parent.stdout  # noqa: PT018
        assert parent.stdout.readline() == "ready\n"
        for _ in range(20):
            parent.stdin.write(f"{last}\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            time.sleep(moments.uniform(0.02, 0.12))
            os.kill(child, signal.SIGKILL)
            assert parent.stdout.readline() == "gone\n"
            tensors, state = checkpoint.load(path)
            assert tensors["number"].eq(state["number"]).all()
            last = state["number"]
            interrupted += any(item.suffix == ".tmp" for item in tmp_path.iterdir())
            for item in tmp_path.glob(".*.tmp"):
                item.unlink()
        parent.stdin.close()
        assert parent.wait(timeout=30) == 0
    assert last > 20, "too few saves"
    assert interrupted > 0, "no save was interrupted, so nothing was tested"
