"""The curve of a run in one line."""

import pytest

from proxrl.log.sparkline import ASCII, BLOCKS, MOST_POINTS, History, sparkline


def test_levels_go_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline(range(8)) == BLOCKS
    assert sparkline([-3.0, 4.0, 0.5]) == "▁█▅"
    assert sparkline([7.0, 7.0]) == "▅▅"
    assert sparkline([]) == ""


def test_an_encoding_without_blocks_gets_ascii() -> None:
    assert sparkline(range(8), "ascii") == sparkline(range(8), "cp1252") == ASCII
    assert sparkline([0, 1], "no-such-encoding") == ASCII[0] + ASCII[-1]


def test_a_history_is_averaged_over_equal_intervals_of_steps() -> None:
    history = History()
    for step, value in ((0, 1.0), (10, 3.0), (60, 5.0), (100, 9.0)):
        history.add(step, value)
    assert history.values(80) == [2.0, 2.0, 5.0, 9.0]  # nothing happened between 25 and 50
    assert history.values(2) == [2.0, 9.0]  # the last one is the latest value, not a mean
    assert history.line(80, "utf-8") == "▁▁▄█"
    assert History().values(10) == []


def test_a_long_history_takes_little_memory_and_keeps_its_shape() -> None:
    history = History()
    for step in range(100_000):
        history.add(step, float(step))
    assert len(history) <= MOST_POINTS
    assert history.values(5) == pytest.approx([10_000, 30_000, 50_000, 70_000, 99_999], rel=0.02)
