"""Before training, `train` tells what a moment of random play finds in the user's environment, and changes nothing by that."""

import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import proxrl
from commands import SMALL, assert_same_checkpoint
from proxrl.check import preflight
from proxrl.cli import main
from proxrl.envs.gymnasium import InProcessEnvs
from sample_envs import Counter


class Careless(gymnasium.Env):
    """Terminates at a time limit, draws from global generators, and counts the environments that were made."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    made = 0

    def __init__(self, length: int = 8) -> None:
        Careless.made += 1
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observe(), float(self.action_space.sample()[0]), int(self.count >= self.length), 0, {}

    def observe(self) -> Any:
        return np.array([random.uniform(-1, 1), np.random.uniform(-1, 1)], np.float64)


WORDS = ("train", "test_preflight:Careless", *SMALL, "--total-steps", "64", "--env-kwargs", "length=8")


@pytest.mark.parametrize("vector", ["auto", "workers"])
def test_train_warns_in_one_line_each(
    vector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    assert main([*WORDS, "--vector", vector, "--num-workers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    warned = [line for line in lines if line.startswith("warning: ")]
    codes = ("action-range-large", "ending-type", "time-out-as-termination")
    assert [any(f"[{code}]" in line for line in warned) for code in codes] == [True] * 3
    assert len(warned) == 3
    last = lines[lines.index(warned[-1]) + 1]
    assert last == "proxrl check test_preflight:Careless --env-kwargs length=8 tells the effects and finds more"


class CoinToss(gymnasium.Env):
    """Terminates when three more of one side than of the other have come up."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.ahead = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.ahead += 1 if action else -1
        return np.array([self.ahead / 3], np.float32), 0.0, abs(self.ahead) >= 3, False, {}


def test_short_episodes_that_are_equally_long_by_chance_are_no_time_limit() -> None:
    lengths = [3] * preflight.PLAY_EPISODES  # the first 15 actions of this seed, three by three
    actions = gymnasium.spaces.Discrete(2, seed=0)
    assert all(len({int(actions.sample()) for _ in range(length)}) == 1 for length in lengths)
    assert preflight.look_over(CoinToss()) == []


def test_the_command_that_tells_more() -> None:
    assert preflight.check_command("my:make", {}) == "proxrl check my:make"
    assert (
        preflight.check_command("__main__:make", {})
        == preflight.check_command("my:<lambda>", {})
        == "proxrl.check.check(env) from Python"
    )


def train(folder: Path, **settings: Any) -> proxrl.Result:
    random.seed(3)
    np.random.seed(3)
    Careless.action_space.seed(3)
    shape = {"num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "total_steps": 64, "hidden_sizes": (8,)}
    return proxrl.train(Careless, runs_dir=folder, **shape, **settings)


def test_the_run_is_the_same_with_and_without_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the environment draws from generators that all share."""
    Careless.made = 0
    checked = train(tmp_path / "checked")
    assert Careless.made == 3  # one more than there are rows
    monkeypatch.setattr("proxrl.launch.warnings_about", lambda *_: [])
    assert_same_checkpoint(checked.path, train(tmp_path / "unchecked").path)


def test_nothing_is_played_if_nobody_reads_it_or_making_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Careless.made = 0
    quiet = train(tmp_path, quiet=True)
    assert Careless.made == 2
    monkeypatch.setattr("proxrl.envs.gymnasium.PROBE_SECONDS", 0.0)
    train(tmp_path, name="slow")
    assert Careless.made == 4
    assert quiet.finished


def test_an_environment_that_is_used_is_not_played_in() -> None:
    env = Counter()
    env.reset(seed=0)
    env.count = 5
    assert InProcessEnvs([lambda: env]).probe(preflight.look_over) is None
    assert env.count == 5


def test_known_families_are_not_checked() -> None:
    assert (
        preflight.warnings_about(InProcessEnvs([lambda: gymnasium.make("CartPole-v1")]), "CartPole-v1", "CartPole-v1", {}) == []
    )
