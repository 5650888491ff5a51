"""Weights & Biases in offline mode: what it writes is read back from its file."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxrl.errors import ProxRLError
from proxrl.log.wandb import WandbLogger

SESSIONS = """
import sys
from pathlib import Path
from proxrl.log.wandb import WandbLogger
folder = Path(sys.argv[1])
for steps in ((100, 200, 150), (150, 400)):  # decreasing steps, since only the server knows earlier sessions
    logger = WandbLogger(folder, {"gamma": 0.99, "hidden_sizes": (64, 64)}, name="ppo seed1", quiet=True)
    for step in steps:
        logger.log(step, {"charts/SPS": float(step), "losses/entropy": float("nan")})
    logger.close()
"""


def offline(folder: Path) -> dict[str, str]:
    homes = {f"WANDB_{name}_DIR": str(folder / "home") for name in ("CONFIG", "CACHE", "DATA")}
    return {**os.environ, **homes, "WANDB_MODE": "offline"}


def records(path: Path) -> Iterator[Any]:
    """Read wandb's messages from its file, a LevelDB log: blocks of 32 KB, with records that may continue in the next block."""
    from wandb.proto import wandb_internal_pb2

    data, position, record = path.read_bytes(), 7, b""  # after the header of the file
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a complete record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def test_offline_run_and_its_resume(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = tmp_path / "seed1"
    folder.mkdir()
    command = [sys.executable, "-c", SESSIONS, str(folder)]
    session = subprocess.run(
        command, env=offline(tmp_path), capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    if "wandb can't start" in session.stderr:
        pytest.skip(session.stderr.splitlines()[-1])
    assert session.returncode == 0, session.stderr
    assert (session.stdout, session.stderr) == ("", ""), "nothing is printed when quiet"

    run_id = (folder / "wandb_id").read_text().strip()
    files = sorted(folder.glob(f"wandb/offline-run-*/run-{run_id}.wandb"))
    assert len(files) == 2, "both sessions belong to one run"
    assert not (tmp_path / "wandb").exists()
    all_records = [record for path in files for record in records(path)]
    history = [
        {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        for record in all_records
        if record.HasField("history")
    ]
    assert [(int(entry["global_step"]), float(entry["charts/SPS"])) for entry in history] == [
        (100, 100.0), (200, 200.0), (150, 150.0), (150, 150.0), (400, 400.0),
    ]  # fmt: skip
    runs = [record.run for record in all_records if record.HasField("run")]
    assert {run.run_id for run in runs} == {run_id}
    assert runs[0].display_name == "ppo seed1"
    assert {update.key: update.value_json for update in runs[0].config.update}["gamma"] == "0.99"


VIDEO = """
import sys
from pathlib import Path
import numpy as np
from proxrl.log.wandb import WandbLogger
from proxrl.common.video import VideoWriter
folder = Path(sys.argv[1])
writer = VideoWriter(folder / "step-64.mp4", 30)
for offset in range(10):
    writer.add(np.eye(64, k=offset, dtype=np.uint8)[:, :, None].repeat(3, axis=2) * 255)
writer.close()
logger = WandbLogger(folder, {}, name="ppo seed1", quiet=True)
logger.log_video(64, folder / "step-64.mp4")
logger.close()
"""


def test_a_video_is_logged_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("imageio_ffmpeg")
    command = [sys.executable, "-c", VIDEO, str(tmp_path)]
    session = subprocess.run(command, env=offline(tmp_path), capture_output=True, text=True, timeout=120, cwd=tmp_path)
    if "wandb can't start" in session.stderr:
        pytest.skip(session.stderr.splitlines()[-1])
    assert (session.returncode, session.stdout, session.stderr) == (0, "", "")
    videos = list(tmp_path.glob("wandb/offline-run-*/files/media/videos/videos/episode_*.mp4"))
    assert [path.read_bytes() for path in videos] == [(tmp_path / "step-64.mp4").read_bytes()]
    history = [record.history for path in tmp_path.glob("wandb/offline-run-*/*.wandb") for record in records(path)]
    items = [(item.key or item.nested_key[0], item.value_json) for line in history for item in line.item]
    assert ("global_step", "64") in items
    # The video has several entries (its path, its size, ...) in any order.
    assert any(key == "videos/episode" and videos[0].name in value for key, value in items)


def test_without_wandb_the_error_names_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ProxRLError) as error:
        WandbLogger(tmp_path, {}, name="x")
    assert "pip install 'proxrl[wandb]'" in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_wandb_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    projects = []

    def refuse(project: str, **_: object) -> None:
        projects.append(project)
        raise wandb.errors.UsageError("no API key\nconfigured")

    monkeypatch.setattr(wandb, "init", refuse)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with pytest.raises(ProxRLError) as error:
        WandbLogger(tmp_path, {}, name="x")
    assert "no API key configured" in str(error.value)
    assert "\n" not in str(error.value)
    assert projects == ["mine"]
