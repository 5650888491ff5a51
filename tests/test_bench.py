"""`proxrl bench`: a real run, and shares of its time that add up."""

import json
import time
from pathlib import Path

import gymnasium
import pytest

from proxrl.bench import Timed, TimedWorld, bench
from proxrl.cli import main
from proxrl.config import Config
from proxrl.world.solo import Solo
from ranks import run_ranks_by

SMALL = ["--num-envs", "2", "--rollout-steps", "64", "--num-minibatches", "2", "--epochs", "1", "--hidden-sizes", "8"]


class Slow(gymnasium.Wrapper):
    def step(self, action: int) -> tuple:
        time.sleep(0.02)
        return super().step(action)


def make_slow() -> gymnasium.Env:
    return Slow(gymnasium.make("CartPole-v1"))


def test_slow_environments_take_most_of_the_time() -> None:
    config = Config(env="slow", num_envs=2, rollout_steps=16, num_minibatches=2, epochs=1, vector="inprocess")
    speed = bench(config, seconds=0.5, env=make_slow)
    assert speed.environments > 0.5
    assert speed.steps_per_second < 1 / 0.02  # two environments, one after the other
    parts = speed.environments + speed.acting + speed.learning + speed.communication + speed.rest
    assert parts == pytest.approx(1.0, abs=0.01)
    assert speed.iterations * 32 == pytest.approx(speed.steps_per_second * speed.seconds)


def test_the_command_prints_a_rate_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "CartPole-v1", *SMALL, "--seconds", "0.3"]) == 0
    title, rate, *shares = capsys.readouterr().out.splitlines()
    assert title == "CartPole-v1: 2 envs (inprocess) x 64 steps, 1 epochs x 2 minibatches of 64"
    assert "steps/s over" in rate
    assert [share.split()[0] for share in shares] == ["environments", "acting", "learning", "communication", "rest"]
    assert sum(int(share.split()[1].rstrip("%")) for share in shares) == pytest.approx(100, abs=4)
    assert main(["bench", "CartPole-v1", *SMALL, "--seconds", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps_per_second"] > 0
    assert list(tmp_path.iterdir()) == []
    assert main(["bench", "CartPole-v1", "--seconds", "0"]) == 2


def test_two_ranks_print_once_and_report_the_share_of_communication(tmp_path: Path) -> None:
    done = run_ranks_by("mpi", 2, "bench", "CartPole-v1", *SMALL, "--seconds", "0.5", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    speed = json.loads(done.stdout)
    assert speed["ranks"] == 2
    assert 0 < speed["communication"] < 1


def test_messages_and_calls_are_timed() -> None:
    world = TimedWorld(Solo())
    assert world.gather({"a": 1}) == [{"a": 1}]
    assert world.size == 1
    assert world.stopwatch.seconds > 0
    timed = Timed([3, 1], "sort")
    timed.sort()
    assert timed.stopwatch.seconds > 0
    assert timed.index(1) == 0
