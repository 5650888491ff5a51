"""What is said of the machine."""

import os
from pathlib import Path

import pytest

from proxrl.runs import machine


def test_the_processor_is_named_where_the_system_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: Fast Chip 3000 @ 2.5GHz\n")
    monkeypatch.setattr(machine, "CPU_INFO", told)
    assert machine.machine_facts()["processor"] == "Fast Chip 3000 @ 2.5GHz"
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "nothing")
    assert machine.processor_name()


def test_the_facts_are_those_of_this_machine() -> None:
    facts = machine.machine_facts()
    assert facts["cores"] == os.cpu_count()
    assert facts["os"].split()[0] in ("Linux", "Darwin", "Windows")
