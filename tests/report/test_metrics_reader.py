"""Metrics by column: read on where the last reading ended, and thinned without losing what they say."""

import json
from pathlib import Path

import pytest

from proxrl.report.metrics_reader import MetricsReader
from proxrl.runs.folder import RunFolder
from proxrl.runs.metrics import RETURN


def line(step: int, **metrics: object) -> str:
    return json.dumps({"step": step, "time": step / 100, **metrics}) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def read(columns: MetricsReader) -> MetricsReader:
    columns.read()
    return columns


def test_a_long_run_becomes_means_of_equal_parts(run: RunFolder) -> None:
    run.metrics_path.write_text(
        "".join(line(step, **{RETURN: step, "losses/late": step} if step > 2500 else {RETURN: step}) for step in range(1, 5001))
    )
    thinned = read(MetricsReader(run)).downsampled(1000)
    assert thinned["lines"] == 5000
    assert thinned["step"] == list(range(5, 5001, 5))
    assert thinned["time"][-1] == 50.0
    assert thinned["metrics"][RETURN] == [float(step - 2) for step in range(5, 5001, 5)]
    assert thinned["metrics"]["losses/late"][:500] == [None] * 500
    assert thinned["metrics"]["losses/late"][500] == 2503.0


def test_a_short_run_is_as_it_was_logged(run: RunFolder) -> None:
    run.metrics_path.write_text(
        line(10, **{RETURN: 1.5}) + line(20, **{RETURN: None}) + "no JSON\n" + line(30, **{RETURN: 2.5, "x/text": "a"})
    )
    columns = read(MetricsReader(run))
    assert columns.downsampled() == {
        "lines": 3,
        "step": [10, 20, 30],
        "time": [0.1, 0.2, 0.3],
        "metrics": {RETURN: [1.5, None, 2.5]},
    }
    assert list(columns.returns()) == [{"step": 10, RETURN: 1.5}, {"step": 30, RETURN: 2.5}]
    assert columns.last(RETURN) == 2.5
    assert columns.last("charts/SPS") is None


def test_a_running_job_is_read_on_and_a_resumed_one_anew(run: RunFolder) -> None:
    run.metrics_path.write_text(line(10) + line(20))
    columns = read(MetricsReader(run))
    with open(run.metrics_path, "a") as file:
        file.write(line(30) + line(40)[:7])
    assert read(columns).downsampled()["step"] == [10, 20, 30]
    with open(run.metrics_path, "a") as file:
        file.write(line(40)[7:])
    assert read(columns).downsampled()["step"] == [10, 20, 30, 40]
    other = run.path / "other"
    other.write_text(line(10) + line(21) + line(31) + line(41) + line(51))
    other.replace(run.metrics_path)
    assert read(columns).downsampled()["step"] == [10, 21, 31, 41, 51]
    run.metrics_path.write_text("".join(line(step) for step in range(7, 700, 7)))  # the same file, begun anew
    assert read(columns).downsampled()["step"] == list(range(7, 700, 7))
    run.metrics_path.unlink()
    assert read(columns).downsampled()["lines"] == 0
