"""Runs with bonuses from start to export, and wrong arguments."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxrl
from commands import metrics, saved
from proxrl.cli import main
from proxrl.export import exporter
from proxrl.policy.policy import Policy

TINY: dict[str, Any] = {"num_envs": 2, "rollout_steps": 20, "num_minibatches": 2, "hidden_sizes": (8,), "total_steps": 80}


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("settings", [{}, {"memory": "lstm", "memory_size": 4}])
def test_masked_runs_with_two_value_streams_are_loaded_evaluated_and_exported(settings: dict[str, Any]) -> None:
    both = ["rnd", {"update_fraction": 0.5}, "icm"]
    result = proxrl.train("mask_envs:Doors", **TINY, bonus=both, quiet=True, **settings)
    names = {"bonus/icm_reward", "bonus/rnd_reward", "losses/icm_forward", "losses/icm_inverse", "losses/rnd_predictor"}
    assert all(names <= set(line) and all(np.isfinite(line[name]) for name in names) for line in metrics(result.path))
    tensors = saved(result.path)[0]
    assert {name.split(".")[1] for name in tensors if name.startswith("learner.")} == {"0", "1"}
    assert (result.path / "config.toml").read_text().count('bonus = ["rnd", "update_fraction=0.5", "icm"]') == 1
    assert proxrl.evaluate(result.path, episodes=2)
    agent = proxrl.load(result.path)
    assert agent.policy.value_streams == 2
    obs, mask = np.zeros(1, np.float32), np.ones(8, np.int8)
    assert 3 <= agent.act(obs, mask=mask) < 11
    agent.reset()
    rows = {"observation": torch.zeros(1, 1), "action_mask": torch.ones(1, 8)}
    policy: Policy = agent.policy
    with torch.no_grad():
        value = policy(rows, policy.initial_state(1), torch.ones(1, dtype=torch.bool))[1]
    assert agent.value(obs) == pytest.approx(value[0, 0].item(), abs=1e-6)  # of the environment's rewards
    deployed = exporter.deploy(agent)
    assert torch.equal(deployed.policy.value.weight, agent.policy.value.weight)


WRONG = [
    (["rndd"], r"--bonus takes icm or rnd, or module:callable, .*, not 'rndd'"),
    (["rnd", "rnd"], r"--bonus names rnd twice; name it once, and change its weight by --rnd-coef"),
    (["rnd", "fraction=1"], r"--bonus rnd has no argument 'fraction'; it takes update_fraction, episodic, gae_lambda"),
    (["rnd", "update_fraction=0"], r"--bonus rnd update_fraction=0: it must be a number from 0.001 to 1"),
    (["rnd", "episodic=yes"], r"--bonus rnd episodic=yes: it must be true or false"),
    (["plugins:make_failure", "depth=3"], r"--bonus plugins:make_failure failed: .*; check depth=3\n"),
    (["icm", "feature_size=1"], r"--bonus icm feature_size=1: it must be a whole number, at least 2"),
    (["icm", "feature_size=big"], r"--bonus icm feature_size=big: it must be a whole number, at least 2"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_arguments_are_one_line(words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--total-steps", "512", "--quiet", "--bonus", *words]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not list(Path().glob("runs/**/*.safetensors"))


def test_a_bonus_with_its_own_stream_needs_the_built_in_value_network(capfd: pytest.CaptureFixture[str]) -> None:
    # For rnd this is known before the value network is imported, which does not exist here.
    for bonus, value in (("learners:OwnStream", "plugins:make_value"), ("rnd", "nowhere:make_value")):
        assert main(["train", "CartPole-v1", "--total-steps", "512", "--bonus", bonus, "--value", value]) == 2
        assert "own value stream needs ProxRL's value network; leave --value out" in capfd.readouterr().err
