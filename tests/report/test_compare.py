"""Runs side by side: scores, aggregates against numbers worked out by hand, and published figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.report.compare import chart, compare
from proxrl.report.published import published, reference
from written_runs import write_run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two names, two environments, two seeds: one with a published return (CartPole-v1, 490.04), one without."""
    for seed, (a, b) in enumerate([(245.02, 490.04), (245.02, 980.08)], 1):
        write_run(tmp_path, "CartPole-v1", "a", seed, [0.0, a])
        write_run(tmp_path, "CartPole-v1", "b", seed, [0.0, b])
    for seed, (a, b) in enumerate([(20.0, 10.0), (20.0, 15.0)], 1):
        write_run(tmp_path, "Own-v0", "a", seed, [10.0, a])
        write_run(tmp_path, "Own-v0", "b", seed, [10.0, b])
    return tmp_path


def test_aggregates_are_those_that_one_works_out_by_hand(two: Path) -> None:
    found = compare([two])
    assert found.names == ["a", "b"]
    scores = {task.env: {name: task.scores(name).tolist() for name in found.names} for task in found.results}
    assert scores["CartPole-v1"] == {"a": pytest.approx([0.5, 0.5]), "b": pytest.approx([1.0, 2.0])}
    assert scores["Own-v0"] == {"a": pytest.approx([1.0, 1.0]), "b": pytest.approx([0.0, 0.5])}  # 1 is the best mean here: 20
    assert found.aggregates["mean"]["a"].value == pytest.approx(0.75)
    assert found.aggregates["mean"]["b"].value == pytest.approx(3.5 / 4)
    assert found.aggregates["iqm"]["b"].value == pytest.approx((0.5 + 1.0) / 2)  # the middle half of 0, 0.5, 1, 2
    assert found.aggregates["optimality_gap"]["b"].value == pytest.approx((0 + 0 + 1 + 0.5) / 4)  # scores above 1 count as 1
    # b is always better in one environment and always worse in the other.
    assert found.improvement["a", "b"].value == pytest.approx(0.5)
    for estimates in found.aggregates.values():
        assert all(estimate.low <= estimate.value <= estimate.high for estimate in estimates.values())
    # Seeds of `a` agree in each environment, so drawing them anew changes nothing.
    assert found.aggregates["mean"]["a"].low == pytest.approx(found.aggregates["mean"]["a"].high)
    assert found.aggregates["mean"]["b"].low < found.aggregates["mean"]["b"].high


def test_the_command_prints_ours_beside_the_published_and_draws(
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
    told = json.loads(capsys.readouterr().out)
    assert told["scored_by"] == "training"
    assert told["aggregates"]["mean"]["a"]["value"] == pytest.approx(0.75)
    assert {entry["implementation"] for entry in told["tasks"][0]["published"]} == {"cleanrl/ppo", "openai-baselines/ppo2"}


def test_one_name_alone_is_compared_with_what_is_published(tmp_path: Path) -> None:
    write_run(tmp_path, "CartPole-v1", "ppo", 1, [20.0, 490.04])
    found = compare([tmp_path])
    assert found.aggregates["iqm"]["ppo"].value == pytest.approx(1.0)
    assert not found.improvement
    assert any("one seed" in note for note in found.notes)
    assert chart(found, tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_evaluations_count_if_all_runs_have_one_of_their_last_step(tmp_path: Path) -> None:
    one = write_run(tmp_path, "CartPole-v1", "a", 1, [20.0, 100.0])
    two = write_run(tmp_path, "CartPole-v1", "b", 1, [20.0, 100.0])
    evaluation = {"latest": {"step": 200, "seed": 3, "stochastic": {"mean": 300.0}, "deterministic": {"mean": 400.0}}}
    (one / "evaluations.json").write_text(json.dumps(evaluation))
    found = compare([tmp_path])
    assert found.scored_by == "training"
    assert any("no evaluation" in note for note in found.notes)
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    found = compare([tmp_path])
    assert found.scored_by == "evaluation"
    assert found.results[0].returns == {"a": [300.0], "b": [300.0]}
    del evaluation["latest"]["stochastic"]
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    assert compare([tmp_path]).scored_by == "training"
    evaluation["latest"] |= {"step": 100, "stochastic": {"mean": 300.0}}  # of an earlier step: no longer what the run is
    (two / "evaluations.json").write_text(json.dumps(evaluation))
    assert compare([tmp_path]).scored_by == "training"


def test_runs_of_one_name_in_two_places_contend_under_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_run(tmp_path / "old", "CartPole-v1", "ppo", 1, [20.0, 100.0])
    write_run(tmp_path / "new", "CartPole-v1", "ppo", 1, [20.0, 200.0])
    monkeypatch.chdir(tmp_path)
    expected = {"ppo (old)": [100.0], "ppo (new)": [200.0]}
    assert compare(["old", "new"]).results[0].returns == expected
    assert compare([tmp_path]).results[0].returns == expected  # a folder above both is no different
    seeds = write_run(tmp_path / "old", "CartPole-v1", "ppo", 2, [20.0, 300.0])
    assert compare([old, seeds]).results[0].returns == {"ppo": [100.0, 300.0]}  # seeds given one by one are one contender
    write_run(tmp_path / "old", "Acrobot-v1", "ppo", 1, [-500.0, -100.0])
    assert compare([tmp_path]).names == ["ppo (new)", "ppo (old)"]  # a contender in all its environments


def test_a_contender_that_has_nothing_yet_costs_the_others_nothing(two: Path) -> None:
    begun = write_run(two, "CartPole-v1", "c", 1, [1.0], mean_return=None)
    (begun / "metrics.jsonl").write_text("")
    found = compare([two])
    assert found.names == ["a", "b"]
    assert found.aggregates["mean"]["a"].value == pytest.approx(0.75)
    assert any("no episode has finished yet: c" in note for note in found.notes)


def test_unequal_seeds_environments_and_lengths_are_told(tmp_path: Path) -> None:
    write_run(tmp_path, "CartPole-v1", "a", 1, [20.0, 100.0])
    write_run(tmp_path, "CartPole-v1", "a", 2, [20.0, 100.0])
    write_run(tmp_path, "Acrobot-v1", "a", 1, [-500.0, -100.0])
    write_run(tmp_path, "Pendulum-v1", "a", 1, [-1500.0, -100.0])
    write_run(tmp_path, "CartPole-v1", "b", 1, [20.0, 100.0, 200.0], state="running")
    write_run(tmp_path, "Acrobot-v1", "b", 1, [-500.0, -500.0])
    notes = " | ".join(compare([tmp_path]).notes)
    assert "a: 1 seeds of each environment" in notes
    assert "lacks it or learnt nothing: Pendulum-v1" in notes
    assert "CartPole-v1: trained for different times, a 200 steps, b 300 steps" in notes
    assert "not finished" in notes


def test_an_environment_where_nothing_was_learnt_has_no_scale(tmp_path: Path) -> None:
    write_run(tmp_path, "MountainCar-v0", "a", 1, [-200.0, -200.0])  # the published return is -200 as well
    found = compare([tmp_path])
    assert found.results[0].one is None
    assert not found.aggregates


def test_nothing_to_compare_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="no run at"):
        compare([tmp_path])
    (tmp_path / "config.toml").write_text('env = "E"\nname = "n"\n')
    with pytest.raises(ProxRLError, match="no run there has finished an episode"):
        compare([tmp_path])


def test_published_figures_are_found_under_every_name_of_a_task() -> None:
    pong = published("PongNoFrameskip-v4")[0]
    assert (pong.implementation, pong.mean, pong.deviation, pong.steps) == ("cleanrl/ppo_atari", 20.36, 0.20, 10_000_000)
    assert published("CheetahRun-v1") == published("dm_control/cheetah-run-v0") != ()
    assert published("StarpilotEasy-v0")[0].env == "StarPilot (easy)"
    assert len(set(published("BreakoutNoFrameskip-v4"))) == len(published("BreakoutNoFrameskip-v4"))
    # The middle one of six between 211 and 430, and of two the one that states its steps.
    assert reference("Breakout-v5") == published("Breakout-v5")[1]
    assert reference("Breakout-v5").mean == 414.66  # type: ignore[union-attr]
    assert reference("dm_control/ball_in_cup-catch-v0").steps == 8_000_000  # type: ignore[union-attr]
    assert reference("NothingLikeThis-v0") is None
    assert published("NothingLikeThis-v0") == ()
    assert published("pong_v3") == ()  # what is published there is a length
    assert np.isfinite([entry.mean for entry in published("HalfCheetah-v4")]).all()
