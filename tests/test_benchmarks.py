"""The benchmarks still run on today's code. Their numbers are not tested."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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

    def measure(side: str, _settings: dict[str, object], source: Path | None, clock: str) -> float:
        assert clock == "process_time"
        assert side == ("proxrl" if source else "sb3")
        order.append(names[source])
        return rates[names[source]][order.count(names[source]) - 1]

    monkeypatch.setattr(peers, "measure", measure)
    line = peers.compare({}, 3, sources, "process_time")
    assert order == ["sb3", "before", "after", "after", "before", "sb3", "sb3", "before", "after"]
    assert "sb3 100 steps/s   before 200 steps/s   after 300 steps/s" in line
    assert "before/sb3 2.00 (2.00, 3.00, 1.00)" in line
    assert "after/sb3 3.00 (3.00, 3.00, 2.00)" in line
    assert "after/before 1.50 (1.50, 1.00, 2.00)" in line


def test_peers_measures_the_given_checkout(tmp_path: Path) -> None:
    package = tmp_path / "src/proxrl"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text("""
import time
from types import SimpleNamespace

class Callback:
    pass

def train(env, callbacks, **settings):
    for step in (10, 10_010):
        callbacks[0].on_iteration(SimpleNamespace(step=step), {})
        time.sleep(0.01)
""")
    for clock in ("perf_counter", "process_time"):
        rate = load("peers").measure("proxrl", {"env": "E"}, tmp_path / "src", clock)
        assert rate < 1e6 if clock == "perf_counter" else rate > 1e6  # sleeping takes no processor time


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


def test_solved_follows_the_mean_of_the_last_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dataclasses look their module up by name.
    spec = importlib.util.spec_from_file_location("benchmark_solved", FOLDER / "solved.py")
    assert spec is not None
    assert spec.loader is not None
    solved = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_solved", solved)
    spec.loader.exec_module(solved)
    task = solved.Task(threshold=10.0, random=0.0, window=2, capped_at=300)

    def follow(returns: list[list[float]], until_solved: bool = False) -> tuple[bool, dict[str, Any]]:
        watch = solved.Watch(task, until_solved)
        watch.begin()
        go_on = [watch.add(100 * (index + 1), part) for index, part in enumerate(returns)]
        return go_on[-1], watch.result(100 * len(returns))

    go_on, result = follow([[20.0], [20.0, 1.0], [20.0, 1.0, 19.0], [1.0, 19.0]])  # one episode is too few
    assert (go_on, result["solved"]["step"], result["kept"], result["lowest_after"]) == (True, 200, True, 10.0)
    go_on, result = follow([[10.0, 10.0], [10.0, 8.0]])
    assert (result["final"], result["lowest_after"], result["kept"]) == (9.0, 9.0, False)  # 5% of the way from 0 may be lost
    assert follow([[10.0, 10.0]], until_solved=True)[0] is False
    go_on, result = follow([[1.0, 1.0]] * 3)
    assert (go_on, result["solved"], result["kept"]) == (False, None, False)  # given up at 300 steps
    one, two = ({**follow([[10.0, 10.0]] * count)[1], "settings": ""} for count in (1, 2))
    failed = {**two, "solved": None, "kept": False}
    row = solved.table({"CartPole-v1|preset|1": one, "CartPole-v1|preset|2": failed}).splitlines()[-1]
    assert row.startswith("| CartPole-v1 | 475 (20) | preset | 1 of 2 | not in 200 | not in 200 | not in 200 |")
    assert row.endswith("| 1 of 1 | 10, 10 |")
    stopped = {**failed, "max_steps": 200}
    assert solved.is_known(stopped, "", until_solved=True, max_steps=200)
    assert not solved.is_known(stopped, "", until_solved=True, max_steps=300)  # it might have been solved by then
    assert not solved.is_known({**one, "kept": None}, "", until_solved=False, max_steps=None)
    assert not solved.is_known(one, "other settings", until_solved=True, max_steps=None)
    assert solved.settings_of("CartPole-v1", "reference", {}) == solved.settings_of("CartPole-v1", "reference", {"seed": 1})
    assert solved.settings_of("CartPole-v1", "preset", {}) != solved.settings_of("CartPole-v1", "reference", {})
    assert solved.settings_of("Taxi-v4", "sb3", {}) is None
