"""`proxrl compare`: scores and aggregates against hand-computed numbers, and published returns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.report.compare import chart, compare
from proxrl.report.published import published, reference
from written_runs import write_run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two names, two environments, two seeds. Only CartPole-v1 has a published return, 490.04."""
    for seed, (a, b) in enumerate([(245.02, 490.04), (245.02, 980.08)], 1):
        write_run(tmp_path, "CartPole-v1", "a", seed, [0.0, a])
        write_run(tmp_path, "CartPole-v1", "b", seed, [0.0, b])
    for seed, (a, b) in enumerate([(20.0, 10.0), (20.0, 15.0)], 1):
        write_run(tmp_path, "Own-v0", "a", seed, [10.0, a])
        write_run(tmp_path, "Own-v0", "b", seed, [10.0, b])
    return tmp_path


def test_aggregates_equal_hand_computed_numbers(two: Path) -> None:
    comparison = compare([two])
    assert comparison.names == ["a", "b"]
    scores = {result.env: {name: result.scores(name).tolist() for name in comparison.names} for result in comparison.results}
    assert scores["CartPole-v1"] == {"a": pytest.approx([0.5, 0.5]), "b": pytest.approx([1.0, 2.0])}
    assert scores["Own-v0"] == {"a": pytest.approx([1.0, 1.0]), "b": pytest.approx([0.0, 0.5])}  # the best mean, 20, scores 1
    assert comparison.aggregates["mean"]["a"].value == pytest.approx(0.75)
    assert comparison.aggregates["mean"]["b"].value == pytest.approx(3.5 / 4)
    assert comparison.aggregates["iqm"]["b"].value == pytest.approx((0.5 + 1.0) / 2)  # the middle half of 0, 0.5, 1, 2
    assert comparison.aggregates["optimality_gap"]["b"].value == pytest.approx((0 + 0 + 1 + 0.5) / 4)  # scores above 1 count as 1
    # b is always better in one environment, and always worse in the other.
    assert comparison.improvement["a", "b"].value == pytest.approx(0.5)
    for estimates in comparison.aggregates.values():
        assert all(estimate.low <= estimate.value <= estimate.high for estimate in estimates.values())
    # The seeds of `a` have equal scores in each environment, so resampling them changes nothing.
    assert comparison.aggregates["mean"]["a"].low == pytest.approx(comparison.aggregates["mean"]["a"].high)
    assert comparison.aggregates["mean"]["b"].low < comparison.aggregates["mean"]["b"].high


def test_the_command_prints_returns_with_published_ones_and_writes_a_chart(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare.svg"
    assert main(["compare", str(two), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("CartPole-v1"))
    assert "245.02 ± 0.00 (2)" in row
    assert "735.06 ± 245.02 (2)" in row
    assert "490.04 ± 6.12 (cleanrl/ppo, 500,000 steps)" in row
    assert "IQM" in text
    assert "a over b: 0.50 [" in text
    drawing = out.read_text()
    assert all(word in drawing for word in ("IQM", "optimality gap", "probability of improvement", "a over b"))
    assert main(["compare", str(two), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["scored_by"] == "training"
    assert printed["aggregates"]["mean"]["a"]["value"] == pytest.approx(0.75)
    assert {entry["implementation"] for entry in printed["tasks"][0]["published"]} == {"cleanrl/ppo", "openai-baselines/ppo2"}


def test_bars_are_not_cut_off_at_the_edges_of_the_chart(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr("proxrl.report.compare.save_figure", lambda figure, out: figures.append(figure) or out)
    comparison = compare([two])
    chart(comparison, tmp_path / "chart.png")
    panels = [*comparison.aggregates.values(), comparison.improvement]
    for axes, estimates in zip(figures[0].axes, panels, strict=True):
        left, right = axes.get_xlim()
        assert left < min(estimate.low for estimate in estimates.values())
        assert right > max(estimate.high for estimate in estimates.values())


def test_a_single_name_is_scored_by_the_published_return(tmp_path: Path) -> None:
    write_run(tmp_path, "CartPole-v1", "ppo", 1, [20.0, 490.04])
    comparison = compare([tmp_path])
    assert comparison.aggregates["iqm"]["ppo"].value == pytest.approx(1.0)
    assert not comparison.improvement
    assert any("one seed" in note for note in comparison.notes)
    assert chart(comparison, tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_evaluations_are_used_if_all_runs_have_one_of_their_last_step(tmp_path: Path) -> None:
    one = write_run(tmp_path, "CartPole-v1", "a", 1, [20.0, 100.0])
    two = write_run(tmp_path, "CartPole-v1", "b", 1, [20.0, 100.0])
    evaluation = {"latest": {"step": 200, "seed": 3, "stochastic": {"mean": 300.0}, "deterministic": {"mean": 400.0}}}
    (one / "evaluations.json").write_text(json.dumps(evaluation))
    comparison = compare([tmp_path])
    assert comparison.scored_by == "training"
    assert any("no evaluation" in note for note in comparison.notes)
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    comparison = compare([tmp_path])
    assert comparison.scored_by == "evaluation"
    assert comparison.results[0].returns == {"a": [300.0], "b": [300.0]}
    del evaluation["latest"]["stochastic"]
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    assert compare([tmp_path]).scored_by == "training"
    evaluation["latest"] |= {"step": 100, "stochastic": {"mean": 300.0}}  # of an earlier step, so outdated
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    assert compare([tmp_path]).scored_by == "training"


def test_the_folder_is_added_to_a_name_that_is_in_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_run(tmp_path / "old", "CartPole-v1", "ppo", 1, [20.0, 100.0])
    write_run(tmp_path / "new", "CartPole-v1", "ppo", 1, [20.0, 200.0])
    monkeypatch.chdir(tmp_path)
    expected = {"ppo (old)": [100.0], "ppo (new)": [200.0]}
    assert compare(["old", "new"]).results[0].returns == expected
    assert compare([tmp_path]).results[0].returns == expected  # also if found below a common folder
    seeds = write_run(tmp_path / "old", "CartPole-v1", "ppo", 2, [20.0, 300.0])
    assert compare([old, seeds]).results[0].returns == {"ppo": [100.0, 300.0]}  # seeds that are given one by one share a name
    write_run(tmp_path / "old", "Acrobot-v1", "ppo", 1, [-500.0, -100.0])
    assert compare([tmp_path]).names == ["ppo (new)", "ppo (old)"]  # the folder is in the name for all environments


def test_a_name_without_returns_is_omitted_and_does_not_affect_the_others(two: Path) -> None:
    new = write_run(two, "CartPole-v1", "c", 1, [1.0], mean_return=None)
    (new / "metrics.jsonl").write_text("")
    comparison = compare([two])
    assert comparison.names == ["a", "b"]
    assert comparison.aggregates["mean"]["a"].value == pytest.approx(0.75)
    assert any("no episode has finished yet: c" in note for note in comparison.notes)


def test_notes_mention_unequal_seeds_environments_and_lengths(tmp_path: Path) -> None:
    write_run(tmp_path, "CartPole-v1", "a", 1, [20.0, 100.0])
    write_run(tmp_path, "CartPole-v1", "a", 2, [20.0, 100.0])
    write_run(tmp_path, "Acrobot-v1", "a", 1, [-500.0, -100.0])
    write_run(tmp_path, "Pendulum-v1", "a", 1, [-1500.0, -100.0])
    write_run(tmp_path, "CartPole-v1", "b", 1, [20.0, 100.0, 200.0], state="running")
    write_run(tmp_path, "Acrobot-v1", "b", 1, [-500.0, -500.0])
    notes = " | ".join(compare([tmp_path]).notes)
    assert "a: the aggregates use 1 seed per environment" in notes
    assert "not trained there or nothing was learned: Pendulum-v1" in notes
    assert "CartPole-v1: trained for different numbers of steps: a 200 steps, b 300 steps" in notes
    assert "not finished" in notes


def test_an_environment_where_nothing_was_learned_has_no_scores(tmp_path: Path) -> None:
    write_run(tmp_path, "MountainCar-v0", "a", 1, [-200.0, -200.0])  # the published return is also -200
    comparison = compare([tmp_path])
    assert comparison.results[0].one is None
    assert not comparison.aggregates


def test_comparing_nothing_gives_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="no run at"):
        compare([tmp_path])
    (tmp_path / "config.toml").write_text('env = "E"\nname = "n"\n')
    with pytest.raises(ProxRLError, match="no run there has finished an episode"):
        compare([tmp_path])


def test_published_returns_are_found_under_every_name_of_a_task() -> None:
    pong = published("PongNoFrameskip-v4")[0]
    assert (pong.implementation, pong.mean, pong.deviation, pong.steps) == ("cleanrl/ppo_atari", 20.36, 0.20, 10_000_000)
    assert published("CheetahRun-v1") == published("dm_control/cheetah-run-v0") != ()
    assert published("StarpilotEasy-v0")[0].env == "StarPilot (easy)"
    assert len(set(published("BreakoutNoFrameskip-v4"))) == len(published("BreakoutNoFrameskip-v4"))
    # The lower median of six between 211 and 430; of two, the one that states its steps.
    assert reference("Breakout-v5") == published("Breakout-v5")[1]
    assert reference("Breakout-v5").mean == 414.66  # type: ignore[union-attr]
    assert reference("dm_control/ball_in_cup-catch-v0").steps == 8_000_000  # type: ignore[union-attr]
    assert reference("NothingLikeThis-v0") is None
    assert published("NothingLikeThis-v0") == ()
    assert published("pong_v3") == ()  # only an episode length is published for it
    assert np.isfinite([entry.mean for entry in published("HalfCheetah-v4")]).all()
