"""The display of training on a pseudo-terminal, in a pipe, and when quiet."""

import io
import os
import re

import pytest

from proxrl.log.activity import Activity
from proxrl.log.console import Console, Pace
from terminals import ESCAPE, run_in_pipe, run_on_terminal, screen_lines

SESSION = """
import time
from proxrl.log.activity import Activity, TimeSpent
from proxrl.log.console import Console
from proxrl.log.ticker import ticking
activity = Activity()
console = Console(planned_steps=500_224, start_step=1_024, activity=activity)
healthy = {"losses/approx_kl": 0.25, "losses/clipfrac": 0.12, "losses/entropy": 0.66, "losses/explained_variance": 0.9}
with ticking(console.tick, console.seconds_between_ticks):
    console.start("CartPole-v1, seed 1")
    for step in range(2_048, 52_224, 1_024):
        console.update(step, step / 500, 120.0, 33.3, 0.625, TimeSpent(0.2, 0.1, 0.7), healthy)
        time.sleep(0.01)
    console.message("checkpoint [saved] at runs/[x]/seed1")
    activity.begin("learning", 10)
    activity.done = 3
    time.sleep(0.6)
    console.update(500_224, mean_return=499.5, best_return=500.0)
    console.finish("done")
"""
WARNING = "KL 0.2500: the policy changes too fast; lower --learning-rate or --epochs"


def test_terminal_shows_live_progress() -> None:
    text = run_on_terminal(SESSION)
    plain = ESCAPE.sub("", text)
    # The thread draws while the training loop sleeps in one long step.
    at = plain.index("step 51,200/500,224  learning epoch 3 of 10")
    returns, health, reason, speed = re.split(r"[\r\n]+", plain[at:])[1:5]
    assert re.fullmatch(r"return 102\.4  [▁▂▃▄▅▆▇█]{25}  best 120\.0  length 33\.3  success 62%", returns)
    assert health == "KL 0.2500  clip fraction 0.12  entropy 0.66  explained variance 0.90"
    assert reason == WARNING
    assert "\x1b[1;31mKL 0.2500\x1b[0m  clip fraction" in text, "only the abnormal value is colored"
    assert re.match(r"[\d,]+ steps/s  environments 20%  acting 10%  learning 70%", speed)
    assert re.search(r"━─+  10%  0:00:0\d elapsed  0:00:\d\d left\s+step 51,200", plain)
    assert re.search(r"━  100%  0:00:0\d elapsed  0:00:00 left\s+step 500,224/500,224", plain)
    assert screen_lines(text) == ["CartPole-v1, seed 1", "checkpoint [saved] at runs/[x]/seed1", "done"]
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"
    # In about a second of five drawings, to which start, message and finish add theirs.
    assert 3 <= plain.count("steps/s") <= 20


def test_a_narrow_terminal_without_color_and_unicode() -> None:
    text = run_on_terminal(SESSION, columns=40, NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert not re.search(r"\x1b\[[0-9;]*3\dm", text), "no color"
    drawn = re.split(r"[\r\n]+", ESCAPE.sub("", text).split("seed1")[-1])
    assert max(map(len, drawn)) <= 37
    assert any(re.fullmatch(r"###-+  10%", line) for line in drawn)
    assert {"return 102.4", "best 120.0  length 33.3  success 62%", "fast; lower --learning-rate or"} <= set(drawn)


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}, {"PYTHONIOENCODING": "ascii"}])
def test_pipe_has_plain_lines(environment: dict[str, str]) -> None:
    lines = run_in_pipe(SESSION, **environment).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)
    assert lines[0] == "CartPole-v1, seed 1"
    assert lines[1] == "checkpoint [saved] at runs/[x]/seed1"
    assert re.fullmatch(r"step 500,224/500,224  100%  return 499\.5  [\d,]+ steps/s  0:00:00 left", lines[2])
    assert lines[3:] == [WARNING, "done"]


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


def test_a_long_iteration_says_what_it_does_and_a_warning_comes_once() -> None:
    clock, stream, activity = Clock(), io.StringIO(), Activity()
    console = Console(planned_steps=1_000, stream=stream, clock=clock, activity=activity)
    console.tick()  # before the start there is nothing to say
    console.start("")
    activity.begin("collecting", 50)
    for second in range(25):
        clock.now += 1
        activity.done = second
        console.tick()
    bad = {"losses/clipfrac": 0.5}
    for _ in range(10):
        console.update(500, 0.62, success_rate=0.625, metrics=bad)
    for _ in range(2):
        clock.now += 10
        console.tick()
    rest = "return 0.62  success rate 62%  20 steps/s  0:00:15 left"
    assert stream.getvalue().splitlines() == [
        "step 0/1,000  0%  return -  0 steps/s  -:--:-- left  collecting 18%",
        "step 0/1,000  0%  return -  0 steps/s  -:--:-- left  collecting 38%",
        f"step 500/1,000  50%  {rest}",
        "clip fraction 0.50: too many steps leave the clip range; lower --learning-rate or --epochs",
        "step 500/1,000  50%  return 0.62  success rate 62%  20 steps/s  0:00:05 left  collecting 48%",
    ]
    console.finish("")
    assert console.elapsed() == "0:00:45"


def test_the_curve_includes_earlier_sessions() -> None:
    stream = io.StringIO()
    console = Console(planned_steps=400, start_step=200, stream=stream)
    assert console.curve() == ""
    console.recall([(100, 0.0), (200, 2.0)])
    console.start("")
    console.update(300, 4.0)
    console.update(400, None)  # no episode has ended
    assert console.curve() == "return ▁▅█ 0.0 to 4.0"


INTERRUPTED = """
import signal, time
from proxrl.common.signals import stopping_signals
from proxrl.log import drawing
from proxrl.log.console import Console
from proxrl.log.ticker import ticking
layout = drawing.layout
def interrupted(*arguments):
    drawing.layout = layout
    signal.raise_signal(signal.SIGINT)  # in the middle of a drawing, which holds the locks of rich and of the console
    return layout(*arguments)
console = Console(planned_steps=100)
with stopping_signals("stopping", notify=console.notice) as received:
    console.start("opening")
    if {thread}:
        with ticking(console.tick, console.seconds_between_ticks):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.7)
    else:
        drawing.layout = interrupted
        console.tick()
    assert received == [signal.SIGINT]
    if {closes}:
        console.close()
    else:
        console.finish("closing")
"""


@pytest.mark.parametrize(("thread", "closes"), [(True, False), (False, False), (False, True)])
def test_ctrl_c_is_acknowledged_on_a_line_that_stays(thread: bool, closes: bool) -> None:
    text = run_on_terminal(INTERRUPTED.format(thread=thread, closes=closes))
    first, second, *rest = screen_lines(text)
    assert (first, second) == ("opening", "stopping; press Ctrl-C again to stop at once")
    assert rest == ["closing"] if not closes else rest[-1] == "0 steps/s"
    if thread:
        assert text.index("stopping;") < text.rindex("step 0/100"), "within a tick, not only at the end"


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
