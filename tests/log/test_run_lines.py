"""The lines of several runs on a pseudo-terminal and in a pipe."""

import io
import re

from proxrl.log.run_lines import RunLine, RunLines, fitting_cells
from terminals import ESCAPE, run_in_pipe, run_on_terminal, screen_lines

SESSION = """
from proxrl.log.run_lines import RunLine, RunLines
times = iter(range(0, 10_000, 100))
shown = RunLines(total=5, now=lambda: next(times))
shown.message("Training")
runs = [RunLine("gamma=0.9  seed 1", 1000, 250, 1234.56, None, 50.0), RunLine("gamma=0.9  seed 2", 1000, 0)]
shown.update(runs, ended=1, steps_waiting=2000)
shown.message("gamma=0.9  seed 1  done")
shown.update([RunLine("gamma=0.9  seed 2", 1000, 900, None, 0.5, 10.0)], ended=2, steps_waiting=2000)
shown.close()
shown.message("the end")
"""
LINES = ["Training", "gamma=0.9  seed 1  done", "the end"]


def test_on_a_terminal_running_runs_are_shown_below_the_lines_and_removed_at_the_end() -> None:
    received = run_on_terminal(SESSION)
    plain = ESCAPE.sub("", received)
    assert "1 of 5 runs ended  2 running  2 waiting" in plain
    assert re.search(r"gamma=0\.9  seed 1 +[━╸╺]+ +25%  return 1,234\.6  50 steps/s  0:00:15 left", plain)
    assert re.search(r"gamma=0\.9  seed 2 +[━╸╺]* +0% +starting", plain)
    assert re.search(r"2 of 5 runs ended  1 running  2 waiting  0:03:30 left", plain)
    assert re.search(r"90%  return -  success 50%  10 steps/s  0:00:10 left", plain)
    assert screen_lines(received) == LINES


def test_a_narrow_terminal_shows_fewer_columns_and_the_ends_of_labels() -> None:
    drawn = re.split(r"[\r\n]+", ESCAPE.sub("", run_on_terminal(SESSION, columns=40)))
    assert max(map(len, drawn)) <= 40
    assert "gamma=0.9  seed 1  25%  return 1,234.6" in [line.strip() for line in drawn]
    assert any(line.startswith("…9  seed 2  90%  return -  success 50%") for line in drawn)
    lines = [RunLine("seed 1", 100, 50, 1.0, None, 10.0)]
    assert fitting_cells(lines, 80) == [["seed 1", "50%", "return 1.0", "10 steps/s", "0:00:05 left"]]
    assert fitting_cells(lines, 40) == [["seed 1", "50%", "return 1.0", "0:00:05 left"]]
    assert fitting_cells(lines, 30) == [["seed 1", "50%", "return 1.0"]]
    assert fitting_cells([], 30) == []


def test_in_a_pipe_every_run_has_a_plain_line() -> None:
    assert run_in_pipe(SESSION).splitlines() == [
        "Training",
        "gamma=0.9  seed 1  25%  return 1,234.6  50 steps/s  0:00:15 left",
        "gamma=0.9  seed 2  0%  starting",
        "gamma=0.9  seed 1  done",
        "gamma=0.9  seed 2  90%  return -  success 50%  10 steps/s  0:00:10 left",
        "the end",
    ]


def test_plain_lines_are_rarer_with_more_runs_and_absent_if_quiet() -> None:
    stream, seconds = io.StringIO(), [0.0]
    shown = RunLines(4, stream=stream, now=lambda: seconds[0])
    runs = [RunLine(f"seed {seed}", 100, 10, 1.0, None, 5.0) for seed in range(4)]
    for now in (9.0, 39.0, 41.0, 79.0, 82.0):
        seconds[0] = now
        shown.update(runs, 0, 0)
    assert stream.getvalue().count("\n") == 8
    quiet = RunLines(4, quiet=True, stream=stream, now=lambda: 1000.0)
    quiet.message("nothing")
    quiet.update(runs, 0, 0)
    assert stream.getvalue().count("\n") == 8
