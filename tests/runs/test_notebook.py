"""How results and scores are printed, and shown in a notebook."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import proxrl
from proxrl.run_texts import Result
from proxrl.runs.evaluations import Scores, ScoresByKind
from proxrl.runs.metrics import RETURN
from proxrl.runs.notebook import HEIGHT, MOST_POINTS, TOP, WIDTH, curve_svg, return_curve

RESULT = Result(Path("runs/a"), "CartPole-v1", 1024, 487.25, 100, 493.0, True, None)


def write_metrics(path: Path, lines: list[object]) -> None:
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def placed(svg: str) -> list[tuple[float, float]]:
    """Return the points of the curve; parsing also shows that the SVG is well formed."""
    line = ElementTree.fromstring(svg).find("polyline")
    assert line is not None
    pairs = [point.split(",") for point in line.get("points", "").split()]
    return [(float(x), float(y)) for x, y in pairs]


def test_a_result_is_one_line() -> None:
    text = "CartPole-v1 finished, step 1,024, return 487.2 over the last 100 episodes, best 493.0, in runs/a"
    assert str(RESULT) == text
    early = replace(RESULT, mean_return=None, best_return=None, finished=False, success_rate=0.25)
    text = "CartPole-v1 unfinished, step 1,024, return none yet: no episode has finished, success rate 25%, in runs/a"
    assert str(early) == text


def test_the_curve_has_every_return_of_the_metrics(tmp_path: Path) -> None:
    lines: list[object] = [{"step": step, RETURN: value} for step, value in ((100, 1.0), (200, 3.0), (400, 2.0))]
    write_metrics(tmp_path, [*lines, {"step": 500}, {"step": 600, RETURN: math.nan}, {"step": "x", RETURN: 1}, 3])
    points = return_curve(tmp_path)
    assert points == [(100, 1), (200, 3), (400, 2)]
    drawn = placed(curve_svg(points, "Returns"))
    assert [y for _, y in drawn][1] == TOP, "the highest is at the top"
    assert drawn[0][1] > drawn[2][1] > drawn[1][1]
    assert [round((x - drawn[0][0]) / (drawn[2][0] - drawn[0][0]), 2) for x, _ in drawn] == [0, 0.33, 1]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)
    page = replace(RESULT, path=tmp_path)._repr_html_()
    assert "487.2 over the last 100 episodes" in page
    assert ">3.0</text>" in page
    assert ">400 steps</text>" in page


def test_long_and_short_and_missing_curves(tmp_path: Path) -> None:
    assert return_curve(tmp_path) == []
    assert "<svg" not in replace(RESULT, path=tmp_path)._repr_html_()
    assert len(placed(curve_svg([(100, 5.0)], ""))) == 1
    write_metrics(tmp_path, [{"step": step, RETURN: step / 2} for step in range(1, 1001)])
    points = return_curve(tmp_path)
    assert len(points) == MOST_POINTS
    assert points[0] == (3, 1.5), "the mean of the first five"


def test_everything_is_escaped(tmp_path: Path) -> None:
    write_metrics(tmp_path, [{"step": 1, RETURN: 1.0}])
    page = replace(RESULT, env="<script>alert('&')</script>", path=tmp_path)._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    ElementTree.fromstring(page)


def test_scores() -> None:
    scores = Scores((1.0, 3.0), (10, 20), (True, False))
    assert str(scores) == "return 2.0 ± 1.0 over 2 episodes, success rate 50%"
    assert str(Scores((1.0,), (10,))) == "return 1.0 ± 0.0 over 1 episode"
    both = ScoresByKind(deterministic=scores, stochastic=Scores((0.5,), (7,)))
    assert str(both) == f"deterministic: {scores}\nstochastic: return 0.5 ± 0.0 over 1 episode"
    assert both == {"deterministic": scores, "stochastic": Scores((0.5,), (7,))}
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in both._repr_html_().split("</tr>")[:-1]]
    assert rows[1:] == [
        ["deterministic", "2.0", "1.0", "1.0", "3.0", "15.0", "50%", "2"],
        ["stochastic", "0.5", "0.0", "0.5", "0.5", "7.0", "-", "1"],
    ]
    ElementTree.fromstring(scores._repr_html_())


def test_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = proxrl.train("CartPole-v1", num_envs=2, rollout_steps=64, hidden_sizes=(8,), total_steps=256, quiet=True)
    assert str(result).startswith("CartPole-v1 finished, step 256, return ")
    assert "<polyline" in result._repr_html_()
    scores = proxrl.evaluate(result.path, episodes=2)
    assert str(scores).count("over 2 episodes") == 2
    assert scores._repr_html_().startswith("<table>")
