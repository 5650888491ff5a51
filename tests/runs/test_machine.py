"""The facts about machine and source that a run records."""

import os
import subprocess
from pathlib import Path

import pytest

from proxrl.runs import machine


def test_the_processor_model_is_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("processor\t: 0\nmodel name\t: Fast Chip 3000 @ 2.5GHz\n")
    monkeypatch.setattr(machine, "CPU_INFO", cpu_info)
    assert machine.machine_facts()["processor"] == "Fast Chip 3000 @ 2.5GHz"
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "nothing")
    assert machine.processor_name()


def test_machine_facts() -> None:
    facts = machine.machine_facts()
    assert facts["cores"] == os.cpu_count()
    assert facts["os"].split()[0] in ("Linux", "Darwin", "Windows")


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.git_state() is None
    (tmp_path / "train.py").write_text("x")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "train.py"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], check=True)
    clean = machine.git_state()
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "train.py").write_text("changed")
    assert machine.git_state() == {"commit": clean["commit"], "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert machine.git_state() is None
