"""The benchmarks still run on today's code. Their numbers are not tested."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_peers_prints_the_median_of_the_ratios_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = load("peers")
    rates = {"sb3": [100.0, 200.0, 100.0], "before": [200.0, 600.0, 100.0], "after": [300.0, 600.0, 200.0]}
    sources = {"sb3": None, "before": Path("old/src"), "after": Path("new/src")}
    names = {source: name for name, source in sources.items()}
    order = []

    def measure(side: str, _settings: dict[str, object], source: Path | None) -> float:
        assert side == ("proxrl" if source else "sb3")
        order.append(names[source])
        return rates[names[source]][order.count(names[source]) - 1]

    monkeypatch.setattr(peers, "measure", measure)
    line = peers.compare({}, 3, sources)
    assert order == ["sb3", "before", "after", "after", "before", "sb3", "sb3", "before", "after"]
    assert "sb3 100 steps/s   before 200 steps/s   after 300 steps/s" in line
    assert "before/sb3 2.00 (2.00, 3.00, 1.00)" in line
    assert "after/sb3 3.00 (3.00, 3.00, 2.00)" in line
    assert "after/before 1.50 (1.50, 1.00, 2.00)" in line


def test_peers_measures_the_given_checkout(tmp_path: Path) -> None:
    package = tmp_path / "src/proxrl"
    package.mkdir(parents=True)
    metrics = r"""'{"step": 10, "time": 1.0}\n{"step": 30, "time": 2.0}\n'"""
    package.joinpath("__init__.py").write_text(f"""
from pathlib import Path
from types import SimpleNamespace

def train(env, runs_dir, **settings):
    Path(runs_dir, "metrics.jsonl").write_text({metrics})
    return SimpleNamespace(path=Path(runs_dir))
""")
    assert load("peers").measure("proxrl", {"env": "E"}, tmp_path / "src") == 20.0


def test_pixels_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    pixels = load("pixels")
    pixels.minibatch_times(rounds=1, num_envs=2, steps=8)
    pixels.rollout_memory(num_envs=2, steps=8)
    minibatch, rollout = capsys.readouterr().out.splitlines()
    assert minibatch.startswith("minibatch of 4: learner ")
    assert rollout.startswith("2 x 8 rollout: ")


def test_ranks_runs_with_one_rank() -> None:
    settings = {"env": "CartPole-v1", "num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 48}
    measured = load("ranks").measure(1, "", settings)
    assert measured["speed"] > 0
    assert 0 <= measured["waiting"] < 1
    assert measured["messages"] > 0
