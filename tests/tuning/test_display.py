"""The display of a study on a pseudo-terminal and in a pipe."""

from terminals import run_in_pipe, run_on_terminal, screen_lines

SESSION = """
from types import SimpleNamespace
from proxrl.tuning import display
from proxrl.tuning.study import Running
display.time = SimpleNamespace(monotonic=iter([1000.0, 1090.0]).__next__)
shown = display.StudyDisplay(total=4, seeds=2, done=1, quiet=False)
shown.message("Tuning")
shown.update([Running(None, 1, reports=10, value=1234.56), Running(None, 2)])
shown.trial(1, "score 9.5", 2, "best 9.5 (trial 1)")
shown.close()
shown.message("Done")
"""
LINES = ["Tuning", "trial 1  score 9.5  best 9.5 (trial 1)  2/4  0:03:00 left", "Done"]


def test_on_a_terminal_running_trials_are_shown_below_the_lines_and_removed_at_the_end() -> None:
    received = run_on_terminal(SESSION)
    assert "trial 1  25%  return 1,234.6" in received
    assert "trial 2  0%  return -" in received
    assert screen_lines(received) == LINES


def test_in_a_pipe_there_are_only_lines() -> None:
    assert run_in_pipe(SESSION).splitlines() == LINES
