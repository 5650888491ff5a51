"""`proxrl plot`: the numbers behind the curves, and bad input."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import proxrl
from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.report.curves import Curve, band, bootstrap, read_curves, smooth
from proxrl.report.plot import as_text, collect_bands, layout, plot, sparkline, x_unit
from proxrl.runs.folder import RunFolder
from proxrl.runs.lookup import find_runs
from proxrl.runs.metrics import RETURN

SMALL = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 1, "total_steps": 640, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        proxrl.train("CartPole-v1", runs_dir=folder, seed=seed, tensorboard=False, **SMALL)
    return folder


def line(x: list[float], value: list[float], name: str = "name") -> Curve:
    return Curve("env", name, np.array(x), np.array(value))


def test_a_point_is_the_mean_of_the_window_before_it() -> None:
    curve = line(list(np.arange(1.0, 101.0)), list(np.arange(1.0, 101.0)))
    # The window is 3 steps: at 50 it holds 48, 49 and 50.
    assert smooth(curve, np.array([1.0, 50.0, 100.0]), 3.0).tolist() == [1.0, 49.0, 99.0]


def test_a_band_is_the_mean_of_its_seeds_up_to_the_end_of_the_shortest() -> None:
    short, long = line([10, 20, 30], [1, 2, 3]), line([10, 20, 30, 40], [3, 4, 5, 60])
    found = band([short, long], smoothing=0, points=3)
    assert (found.seeds, found.x.tolist(), found.mean.tolist()) == (2, [10, 20, 30], [2, 3, 4])
    # A resample of two seeds has both, or twice the one, or twice the other.
    assert (found.low.tolist(), found.high.tolist()) == ([1, 2, 3], [3, 4, 5])
    alone = band([short], smoothing=0, points=3)
    assert alone.low.tolist() == alone.mean.tolist() == alone.high.tolist() == [1, 2, 3]


def test_a_run_that_has_just_started_does_not_break_the_band() -> None:
    found = band([line([100, 200], [5, 7]), line([10], [1])])
    # The other run has no point there, so it must not count as 0.
    assert (found.x.tolist(), found.mean.tolist(), found.low.tolist(), found.seeds) == ([10], [1], [1], 1)


def test_the_interval_covers_the_true_mean_in_about_95_percent_of_cases() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        low, high = bootstrap(rng.normal(5.0, 2.0, size=(20, 1)), draws=500)
        hits += bool(low[0] <= 5.0 <= high[0])
    # A percentile interval of 20 samples covers a little less than 95%; one of another level, or of the spread, is far off.
    assert 0.86 <= hits / 200 <= 0.99


def test_runs_are_found_below_a_folder_and_read(runs: Path) -> None:
    found = find_runs([runs])
    assert [run.path.name for run in found] == ["seed1", "seed2"]
    curve = read_curves(found[0], [RETURN])[RETURN]
    assert curve.env == "CartPole-v1"
    assert curve.x[-1] == 640
    times = read_curves(found[0], [RETURN], by="time")[RETURN]
    assert (np.diff(times.x) > 0).all()
    assert times.value.tolist() == curve.value.tolist()


def test_an_incomplete_last_line_is_skipped(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    original = find_runs([runs])[0]
    (run / "config.toml").write_bytes(original.config_path.read_bytes())
    whole = original.metrics_path.read_bytes()
    (run / "metrics.jsonl").write_bytes(whole[:-30])
    cut, full = read_curves(RunFolder(run), ["losses/entropy"]), read_curves(original, ["losses/entropy"])
    assert len(cut["losses/entropy"].x) == len(full["losses/entropy"].x) - 1


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_command_writes_a_figure_of_both_seeds(runs: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"curves.{ending}"
    assert main(["plot", str(runs), "--out", str(out)]) == 0
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"2 seeds" in content


def test_each_of_several_metrics_has_a_row_of_panels(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "curves.svg"
    words = ["--metric", RETURN, "losses/entropy", "--x", "time", "--smoothing", "0"]
    assert main(["plot", str(runs), "--out", str(out), *words]) == 0
    text = out.read_text()
    assert text.count("seconds of training") == 2
    assert "episodic return" in text
    assert "entropy" in text
    assert layout(["a", "b"], [RETURN, "x"])["b", "x"] == (1, 1)
    assert layout(["a", "b", "c", "d"], [RETURN])["d", RETURN] == (1, 0)
    assert [x_unit(seconds, "time")[0] for seconds in (59, 60, 7200)] == [1, 60, 3600]


def test_text_is_a_sparkline_with_its_first_and_last_value(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(runs), "--text"]) == 0
    title, drawing = capsys.readouterr().out.splitlines()
    assert title == "CartPole-v1  episodic return  ppo, 2 seeds, mean and 95%"
    mean = collect_bands([runs])["CartPole-v1"][RETURN][0].mean
    assert drawing.endswith(f"{mean[0]:.4g} → {mean[-1]:.4g} after 640 steps")
    assert sparkline(np.array([0.0, 1.0, 0.5])) == "▁█▅"
    assert sparkline(np.full(3, 7.0)) == "▁▁▁"
    assert "after 1.0 minutes of training" in as_text({"env": {RETURN: [band([line([1, 60], [0, 1])])]}}, "time")


def test_runs_of_one_name_in_two_folders_are_two_lines_and_a_run_given_twice_is_one(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs, tmp_path / "other")
    bands = collect_bands([runs, tmp_path / "other"])["CartPole-v1"][RETURN]
    assert [(line.name, line.seeds) for line in bands] == [
        (f"ppo ({runs / 'CartPole-v1/ppo'})", 2),
        (f"ppo ({tmp_path / 'other/CartPole-v1/ppo'})", 2),
    ]
    monkeypatch.chdir(runs)
    (twice,) = collect_bands(["CartPole-v1", runs])["CartPole-v1"][RETURN]
    assert (twice.name, twice.seeds) == ("ppo", 2)


def test_config_files_of_other_programs_are_ignored_and_a_broken_run_does_not_hide_others(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    for name, text in (("other", "[build]\njobs = 2\n"), ("broken", "[")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.toml").write_text(text)
    assert [run.path.name for run in find_runs([tmp_path])] == ["seed1", "seed2"]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "broken is left out" in printed


def test_bad_input_gives_a_one_line_error(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="no run at"):
        plot([tmp_path], tmp_path / "curves.png")
    with pytest.raises(ProxRLError, match=r"no run there has charts/nothing yet; they have .*losses/entropy"):
        plot([runs], tmp_path / "curves.png", ["charts/nothing"])
    with pytest.raises(ProxRLError, match="can't write"):
        plot([runs], tmp_path / "missing/curves.png")
    with pytest.raises(ProxRLError, match="its name must end in"):
        plot([runs], tmp_path / "curves.doc")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ProxRLError, match="it is not a file"):
        plot([runs], tmp_path / "pipe.png")
    assert (tmp_path / "pipe.png").is_fifo()
    with pytest.raises(ProxRLError, match="--smoothing is 1"):
        plot([runs], tmp_path / "curves.png", smoothing=1)


def test_null_values_are_not_points(tmp_path: Path) -> None:
    """JSON has no NaN, so a missing value is logged as null."""
    (tmp_path / "config.toml").write_text('env = "E"\nname = "n"\n')
    lines = [{"step": 1, "time": 0.1, RETURN: None}, {"step": 2, "time": 0.2, RETURN: 4.0}, {"step": 3, "time": 0.3}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    curve = read_curves(RunFolder(tmp_path), [RETURN])[RETURN]
    assert (curve.x.tolist(), curve.value.tolist()) == ([2], [4])
    assert not math.isnan(curve.value[0])
