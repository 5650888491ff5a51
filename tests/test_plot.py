"""Learning curves: the numbers behind the line, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

import proxrl
from proxrl.cli import main
from proxrl.curves import Curve, read_curves, smooth
from proxrl.errors import ProxRLError
from proxrl.plot import plot
from proxrl.runs import find_runs

SMALL = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 1, "total_steps": 640, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        proxrl.train("CartPole-v1", runs_dir=folder, seed=seed, tensorboard=False, **SMALL)
    return folder


def test_a_point_is_the_mean_of_the_window_before_it() -> None:
    curve = Curve("env", "name", np.arange(1.0, 101.0), np.arange(1.0, 101.0))
    # The window is 3 steps: at 50 it holds 48, 49 and 50.
    assert smooth(curve, np.array([1.0, 50.0, 100.0]), 3.0).tolist() == [1.0, 49.0, 99.0]


def test_runs_are_found_below_and_read(runs: Path) -> None:
    found = find_runs([runs])
    assert [run.path.name for run in found] == ["seed1", "seed2"]
    curve = read_curves(found[0], ["charts/episodic_return"])["charts/episodic_return"]
    assert curve.env == "CartPole-v1"
    assert curve.x[-1] == 640


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_command_writes_a_picture_of_both_seeds(runs: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"curves.{ending}"
    assert main(["plot", str(runs), "--out", str(out)]) == 0
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG") if ending == "png" else b"2 seeds" in content


def test_what_cannot_be_drawn_is_one_line(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match="no runs at"):
        plot([tmp_path], tmp_path / "curves.png")
    with pytest.raises(ProxRLError, match="no run there has charts/nothing"):
        plot([runs], tmp_path / "curves.png", ["charts/nothing"])
    with pytest.raises(ProxRLError, match="can't write"):
        plot([runs], tmp_path / "missing/curves.png")
