"""The drawing fits every width, and loses nothing on a narrow terminal."""

import re

import pytest

from proxrl.log.drawing import ABNORMAL, View, layout
from proxrl.log.health import Reading
from proxrl.log.sparkline import History


def view(**changes: object) -> View:
    history = History()
    for step in range(100):
        history.add(step, 2.0 * step)
    values = View(
        step=210_432,
        planned_steps=500_224,
        doing="learning epoch 3 of 10",
        elapsed=83,
        time_left="0:01:54",
        steps_per_second=2535.3,
        shares={"environments": 0.29, "acting": 0.25, "learning": 0.44, "other": 0.02},
        mean_return=198.0,
        best_return=203.25,
        mean_length=1234.5,
        success_rate=0.62,
        history=history,
        readings=[Reading("KL 0.0123", ""), Reading("clip fraction 0.10", "")],
    )
    return values._replace(**changes)


def lines(shown: View, width: int, encoding: str = "utf-8") -> list[str]:
    return ["".join(text for text, _ in line) for line in layout(shown, width, encoding)]


def test_at_80_columns() -> None:
    assert lines(view(), 80) == [
        "━━━━━━━━━━━━━━━━━────────────────────────  42%  0:01:23 elapsed  0:01:54 left",
        "step 210,432/500,224  learning epoch 3 of 10",
        "return 198.0  ▁▁▂▂▂▃▃▃▄▄▄▅▅▅▆▆▆▇▇▇▇█  best 203.2  length 1,234.5  success 62%",
        "KL 0.0123  clip fraction 0.10",
        "2,535 steps/s  environments 29%  acting 25%  learning 44%",
    ]


def words(text: list[str]) -> list[str]:
    return re.sub(r"[━─▁▂▃▄▅▆▇█#_.\-:=+*]{2,}", "", " ".join(text)).split()


@pytest.mark.parametrize("width", [26, 40, 60, 80, 140, 400])
def test_every_width_shows_everything(width: int) -> None:
    problem = "the policy hardly explores any more; raise --entropy-coef"
    shown = view(readings=[Reading("KL 0.3500", problem), Reading("entropy 0.50", "")])
    drawn = lines(shown, width)
    assert max(map(len, drawn)) <= width - 3
    assert sorted(words(drawn)) == sorted(words(lines(shown, 80)))
    assert len(drawn) == 6 or width < 80


def test_what_is_not_known_yet_is_left_out() -> None:
    empty = dict.fromkeys(("environments", "acting", "learning", "other"), 0.0)
    nothing = view(
        step=0,
        mean_return=None,
        best_return=None,
        mean_length=None,
        success_rate=None,
        history=History(),
        readings=[],
        shares=empty,
    )
    assert lines(nothing, 80)[2:] == ["return -  best -  length -", "2,535 steps/s"]


def test_an_abnormal_value_is_colored_and_explained() -> None:
    shown = view(readings=[Reading("KL 0.3500", "too fast"), Reading("entropy 0.50", "")])
    health, reason = layout(shown, 80, "utf-8")[3:5]
    assert health == [("KL 0.3500", ABNORMAL), ("  entropy 0.50", "")]
    assert reason == [("KL 0.3500: too fast", ABNORMAL)]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437"])
def test_other_encodings_can_show_it(encoding: str) -> None:
    text = "\n".join(lines(view(), 80, encoding))
    assert text.encode(encoding)
    assert "_" in text


def test_a_large_share_of_other_work_is_shown() -> None:
    shares = {"environments": 0.2, "acting": 0.1, "learning": 0.3, "other": 0.4}
    assert lines(view(shares=shares), 80)[-1].endswith("learning 30%  other 40%")
