"""The display of training on a pseudo-terminal, in a pipe, and when quiet."""

import io
import os
import re

import pytest

from proxrl.log.console import Console, Pace
from terminals import ESCAPE, run_in_pipe, run_on_terminal

SESSION = """
import time
from proxrl.log.console import Console
console = Console(planned_steps=500_224, start_step=1_024)
console.start("CartPole-v1, seed 1")
for step in range(2_048, 52_224, 1_024):
    console.update(step, mean_return=103.44, best_return=120.0)
    time.sleep(0.01)
console.message("checkpoint [saved] at runs/[x]/seed1")
console.update(500_224, mean_return=499.5, best_return=500.0)
console.finish("done")
"""


def test_terminal_shows_live_progress() -> None:
    text = run_on_terminal(SESSION)
    plain = ESCAPE.sub("", text)
    assert "CartPole-v1, seed 1" in plain
    assert re.search(r"step \d+,\d+/500,224  return 103\.4  best 120\.0  [\d,]+ steps/s", plain)
    assert re.search(r"[0-9]%  0:\d\d:\d\d left", plain)
    assert "checkpoint [saved] at runs/[x]/seed1" in plain
    assert re.search(r"100%  0:00:00 left\s+step 500,224/500,224  return 499\.5", plain)
    assert plain.rstrip().endswith("done")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"


def test_terminal_is_redrawn_at_most_eight_times_a_second() -> None:
    # There are 49 updates in half a second, and start, message and finish draw too.
    assert 3 <= ESCAPE.sub("", run_on_terminal(SESSION)).count("steps/s") <= 20


def test_lines_fit_a_narrow_terminal() -> None:
    drawn = [
        line
        for line in re.split(r"[\r\n]+", ESCAPE.sub("", run_on_terminal(SESSION, columns=40)))
        if "left" in line or "step " in line
    ]
    assert drawn
    assert max(map(len, drawn)) <= 40


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}, {"PYTHONIOENCODING": "ascii"}])
def test_pipe_has_plain_lines(environment: dict[str, str]) -> None:
    lines = run_in_pipe(SESSION, **environment).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)
    assert lines[0] == "CartPole-v1, seed 1"
    assert lines[1] == "checkpoint [saved] at runs/[x]/seed1"
    assert re.fullmatch(r"step 500,224/500,224  100%  return 499\.5  [\d,]+ steps/s  0:00:00 left", lines[2])
    assert lines[3:] == ["done"]


def test_dumb_terminal_has_plain_lines() -> None:
    text = run_on_terminal(SESSION, TERM="dumb")
    assert "\x1b" not in text
    assert "step 500,224/500,224  100%" in text


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_are_printed_every_ten_seconds_with_the_rate_of_this_session() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(planned_steps=1_000_000, start_step=500_000, stream=stream, clock=clock)
    clock.now += 100  # building the environments does not count
    console.start("opening")
    for second in range(1, 26):
        clock.now += 1
        console.update(500_000 + 1_000 * second, mean_return=None if second < 15 else -1234.56)
    assert stream.getvalue().splitlines() == [
        "opening",
        "step 510,000/1,000,000  51%  return -  1,000 steps/s  0:08:10 left",
        "step 520,000/1,000,000  52%  return -1,234.6  1,000 steps/s  0:08:00 left",
    ]
    assert console.steps_per_second == pytest.approx(1000)
    console.finish("closing")
    assert stream.getvalue().splitlines()[3:] == [
        "step 525,000/1,000,000  52%  return -1,234.6  1,000 steps/s  0:07:55 left",
        "closing",
    ]


def test_time_left_follows_the_recent_rate() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(planned_steps=1_000_000, stream=stream, clock=clock)
    console.start("")
    step = 0
    for second in range(300):
        clock.now += 1
        step += 1_000 if second < 200 else 10
        console.update(step)
    assert stream.getvalue().splitlines()[-1].endswith("670 steps/s  22:11:40 left")  # 799,000 steps at 10 a second


def test_pace_keeps_few_samples() -> None:
    pace = Pace(0, 0.0)
    for index in range(1, 100_001):
        pace.add(index, index * 0.001)
    assert len(pace._recent) < 2.2 * 20 / 0.1
    assert pace.recent == pytest.approx(1000)
    assert pace.session == pytest.approx(1000)


def test_time_left_is_unknown_at_first_and_zero_beyond_the_plan() -> None:
    stream = io.StringIO()
    console = Console(planned_steps=100, start_step=0, stream=stream, clock=Clock())
    console.start("")
    console.update(50)
    console.finish("")
    assert stream.getvalue().endswith("0 steps/s  -:--:-- left\n")
    console.update(150)
    console.finish("")
    assert stream.getvalue().endswith("step 150/100  100%  return -  0 steps/s  0:00:00 left\n")


def test_quiet_prints_nothing() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(planned_steps=100, quiet=True, stream=stream, clock=clock)
    console.start("a")
    clock.now += 60
    console.update(50)
    console.message("b")
    console.finish("c")
    assert stream.getvalue() == ""
    assert console.steps_per_second == pytest.approx(50 / 60)


def test_a_closed_pipe_does_not_end_training() -> None:
    reading, writing = os.pipe()
    console = Console(planned_steps=100, stream=os.fdopen(writing, "w"))
    console.start("first")
    os.close(reading)
    console.message("nobody reads this")
    console.update(100)
    console.finish("nor this")
