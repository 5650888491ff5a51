"""`MetricsReader`: reads new lines only, and downsamples by averaging."""

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


def read(reader: MetricsReader) -> MetricsReader:
    reader.read()
    return reader


def test_a_long_run_is_averaged_over_sections_of_equal_length(run: RunFolder) -> None:
    run.metrics_path.write_text(
        "".join(line(step, **{RETURN: step, "losses/late": step} if step > 2500 else {RETURN: step}) for step in range(1, 5001))
    )
    downsampled = read(MetricsReader(run)).downsampled(1000)
    assert downsampled["lines"] == 5000
    assert downsampled["step"] == list(range(5, 5001, 5))
    assert downsampled["time"][-1] == 50.0
    assert downsampled["metrics"][RETURN] == [float(step - 2) for step in range(5, 5001, 5)]
    assert downsampled["metrics"]["losses/late"][:500] == [None] * 500
    assert downsampled["metrics"]["losses/late"][500] == 2503.0


def test_a_short_run_keeps_every_logged_line(run: RunFolder) -> None:
    run.metrics_path.write_text(
        line(10, **{RETURN: 1.5}) + line(20, **{RETURN: None}) + "no JSON\n" + line(30, **{RETURN: 2.5, "x/text": "a"})
    )
    reader = read(MetricsReader(run))
    assert reader.downsampled() == {
        "lines": 3,
        "step": [10, 20, 30],
        "time": [0.1, 0.2, 0.3],
        "metrics": {RETURN: [1.5, None, 2.5]},
    }
    assert list(reader.returns()) == [{"step": 10, RETURN: 1.5}, {"step": 30, RETURN: 2.5}]
    assert reader.last(RETURN) == 2.5
    assert reader.last("charts/SPS") is None


def test_new_lines_are_appended_and_a_rewritten_file_is_read_from_the_start(run: RunFolder) -> None:
    run.metrics_path.write_text(line(10) + line(20))
    reader = read(MetricsReader(run))
    with open(run.metrics_path, "a") as file:
        file.write(line(30) + line(40)[:7])
    assert read(reader).downsampled()["step"] == [10, 20, 30]
    with open(run.metrics_path, "a") as file:
        file.write(line(40)[7:])
    assert read(reader).downsampled()["step"] == [10, 20, 30, 40]
    other = run.path / "other"
    other.write_text(line(10) + line(21) + line(31) + line(41) + line(51))
    other.replace(run.metrics_path)
    assert read(reader).downsampled()["step"] == [10, 21, 31, 41, 51]
    run.metrics_path.write_text("".join(line(step) for step in range(7, 700, 7)))  # the same inode with other content
    assert read(reader).downsampled()["step"] == list(range(7, 700, 7))
    run.metrics_path.unlink()
    assert read(reader).downsampled()["lines"] == 0
