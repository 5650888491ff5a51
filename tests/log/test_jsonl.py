"""metrics.jsonl: every line is valid JSON, and a resumed run removes the lines of the steps that it repeats."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disks import file_size_limit
from proxrl.errors import ProxRLError
from proxrl.log.jsonl import JsonlLogger


def strict_lines(path: Path) -> list[dict[str, Any]]:
    """Parse the lines as strict JSON, which has no NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_each_line_has_step_time_and_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(512, {"losses/value_loss": 0.5, "charts/episodic_return": math.nan, "charts/SPS": math.inf})
    assert strict_lines(path)[0]["step"] == 512, "a reader sees the line before close"
    time.sleep(0.02)
    logger.log(1024, {"losses/value_loss": np.float32(0.25)})
    logger.close()
    first, second = strict_lines(path)
    assert first.pop("time") < 0.02 <= second.pop("time") < 1
    assert first == {"step": 512, "losses/value_loss": 0.5, "charts/episodic_return": None, "charts/SPS": None}
    assert second == {"step": 1024, "losses/value_loss": 0.25}


def test_resume_removes_later_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "time": {step / 10}, "a": 1.0}}\n' for step in (100, 200, 200, 300, 400)]
    path.write_text("".join(lines) + '{"step": 150, "ti')  # a process killed while writing a line
    logger = JsonlLogger(path, resume_step=200)
    assert path.read_text() == "".join(lines[:3])
    logger.log(300, {"a": 2.0})
    logger.close()
    entries = strict_lines(path)
    assert [entry["step"] for entry in entries] == [100, 200, 200, 300]
    assert entries[-1]["a"] == 2.0
    assert 20.0 <= entries[-1]["time"] < 21.0, "the clock continues from the last line"


@pytest.mark.parametrize("tail", ['{"step": 150, "time": 1.0}', '{"step": 150', "[1]\n", "\n", '{"time": 1}\n', "\x00\x00\n"])
def test_resume_removes_incomplete_lines(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 100, "time": 0.5}\n' + tail)
    JsonlLogger(path, resume_step=200).close()
    assert path.read_text() == '{"step": 100, "time": 0.5}\n'


def test_a_new_run_removes_all_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "time": 9.5}\n')
    logger = JsonlLogger(path)
    logger.log(0, {})
    logger.close()
    assert [entry["step"] for entry in strict_lines(path)] == [0]
    assert strict_lines(path)[0]["time"] < 1


def test_a_full_disk_is_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(1, {"a": 1.0})
    with file_size_limit(path.stat().st_size + 10):
        with pytest.raises(ProxRLError, match="can't write") as error:
            logger.log(2, {"a": 1.0})
        logger.close()
    assert "\n" not in str(error.value)
    JsonlLogger(path, resume_step=5).close()
    assert [entry["step"] for entry in strict_lines(path)] == [1]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="can't write"):
        JsonlLogger(tmp_path / "absent" / "metrics.jsonl")
