"""The output that all displays share: on a pseudo-terminal, in a pipe, and when the terminal is gone."""

import io
import os
import re
import sys

import pytest

from proxrl.log.terminal import LIVE_SECONDS, PLAIN_SECONDS, TerminalOutput, can_redraw, hours_minutes_seconds
from terminals import ESCAPE, run_in_pipe, run_on_terminal, screen_lines

SESSION = """
import sys
from rich.text import Text
from proxrl.log.terminal import TerminalOutput
output = TerminalOutput(sys.stdout, transient={transient})
output.print("before")
output.draw(Text("drawing 1"))
output.print("a [line] that is longer than the terminal is wide, and stays in one piece")
output.draw(Text("drawing 2"))
output.close()
output.draw(Text("drawing 3"))
output.print("after")
"""
LINES = ["before", "a [line] that is longer than the terminal is wide, and stays in one piece", "after"]
BAR = """
import time
from proxrl.log.bar import episodes_bar
with episodes_bar("Evaluating runs/[x]", 4) as watch:
    for finished in (0, 1, 0, 2):
        watch(finished, 3)
    time.sleep(0.3)  # it is drawn ten times a second
"""


def test_on_a_terminal_the_drawing_is_replaced_and_lines_stay_above_it() -> None:
    received = run_on_terminal(SESSION.format(transient=False), columns=40)
    assert screen_lines(received) == [*LINES[:2], "drawing 2", "after"]
    assert received.count("\x1b[?25l") == received.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"


def test_a_transient_drawing_is_removed_at_the_end() -> None:
    received = run_on_terminal(SESSION.format(transient=True), columns=40)
    assert "drawing 2" in received
    assert screen_lines(received) == LINES


def test_a_pipe_and_a_dumb_terminal_get_the_lines_only() -> None:
    code = SESSION.format(transient=False)
    for text in (run_in_pipe(code, FORCE_COLOR="1", TERM="xterm"), run_on_terminal(code, TERM="dumb")):
        assert text.split() == " ".join(LINES).split()
        assert "\x1b" not in text


def test_rich_is_not_imported_in_a_pipe() -> None:
    code = (
        "import sys; from proxrl.log.terminal import TerminalOutput; TerminalOutput(sys.stdout).print(str('rich' in sys.modules))"
    )
    assert run_in_pipe(code) == "False\n"


def test_drawings_may_come_often_and_lines_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    assert TerminalOutput(stream).interval == PLAIN_SECONDS
    monkeypatch.setattr(stream, "isatty", lambda: True)
    for term, redraws in (("xterm", True), ("dumb", False), ("unknown", False)):
        monkeypatch.setenv("TERM", term)
        assert can_redraw(stream) is redraws
        assert TerminalOutput(stream).interval == (LIVE_SECONDS if redraws else PLAIN_SECONDS)
        assert not TerminalOutput(stream, quiet=True).redraws
        assert not TerminalOutput(stream, live=False).redraws


def test_a_closed_pipe_ends_the_output_without_an_error() -> None:
    reading, writing = os.pipe()
    output = TerminalOutput(os.fdopen(writing, "w"))
    output.print("first")
    os.close(reading)
    output.print("nobody reads this")
    assert output.quiet
    output.print("nor this")
    output.close()


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
def test_a_closed_terminal_ends_the_output_without_an_error() -> None:
    import pty

    ours, theirs = pty.openpty()
    output = TerminalOutput(os.fdopen(theirs, "w"))
    output.draw("drawing")
    os.close(ours)
    output.draw("nobody sees this")
    assert output.quiet
    output.close()


def test_characters_that_the_encoding_lacks_are_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    TerminalOutput(stream).print("ok → fine")
    assert raw.getvalue() == b"ok ? fine\n"


def test_hours_minutes_seconds() -> None:
    assert [hours_minutes_seconds(seconds) for seconds in (0, 59, 3_600, 90_061)] == ["0:00:00", "0:00:59", "1:00:00", "25:01:01"]


def test_a_bar_counts_episodes_and_steps_on_a_terminal_and_is_removed_at_the_end() -> None:
    received = run_on_terminal(BAR, columns=120)
    assert re.search(r"Evaluating runs/\[x\] .* 3/4 episodes  12 steps 0:00:00", ESCAPE.sub("", received))
    assert screen_lines(received) == []


def test_there_is_no_bar_in_a_pipe() -> None:
    assert run_in_pipe(BAR) == ""
