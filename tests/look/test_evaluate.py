"""Evaluation counts the same number of episodes for every environment, and does not change the policy."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import LostEnvs, NextStepEnvs, assemble
from proxrl.build import Parts
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.look.evaluation import equal_quota, run_episodes
from proxrl.runs.evaluations import Scores


class FixedLength(gymnasium.Env):
    """Gives a reward of 1 for every step, and ends after a given number of steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps_left = self.length
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps_left -= 1
        return np.zeros(1, np.float32), 1.0, self.steps_left == 0, False, {}


class OneStep(gymnasium.Env):
    """One step, whose reward is the action, or a random number of the episode's seed if `random`."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, random: bool = False) -> None:
        self.random = random

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.number = float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self.number if self.random else float(action), True, False, {}


def parts_for(makers: list[Any], pool: Any = InProcessEnvs, **changes: Any) -> Parts:
    return assemble(Config(num_envs=len(makers), hidden_sizes=(4,), **changes), pool(makers))


def scores(parts: Parts, episodes: int, seed: int = 0, deterministic: bool = True) -> Scores:
    quota = episodes // parts.environments.num_envs
    return run_episodes(parts.environments, parts.compute, parts.policy, quota, seed, deterministic)


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs, LostEnvs])
def test_every_environment_plays_the_same_number_of_episodes(pool: Any) -> None:
    parts = parts_for([lambda: FixedLength(2), lambda: FixedLength(20)], pool)
    result = scores(parts, 6)
    # Of the first six episodes to finish, five or six would be short.
    assert sorted(result.lengths) == [2, 2, 2, 20, 20, 20]
    assert result.mean == 11
    assert result.deviation == 9


@pytest.mark.parametrize(("episodes", "most", "expected"), [(10, 4, 2), (10, 8, 5), (7, 8, 7), (7, 6, 1), (1, 8, 1), (20, 8, 5)])
def test_equal_quota_is_the_largest_divisor_within_the_limit(episodes: int, most: int, expected: int) -> None:
    assert equal_quota(episodes, most) == expected


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_deterministic_takes_the_most_likely_action_and_stochastic_samples(compute: str) -> None:
    parts = parts_for([OneStep] * 4, compute=compute)
    with torch.no_grad():
        parts.policy.action.bias.copy_(torch.log(torch.tensor([0.25, 0.75])))
    assert set(scores(parts, 40).returns) == {1.0}
    sampled = scores(parts, 320, deterministic=False)
    assert sampled.mean == pytest.approx(0.75, abs=0.1)  # four standard errors
    assert sampled.returns == scores(parts, 320, deterministic=False).returns
    assert sampled.returns != scores(parts, 320, seed=1, deterministic=False).returns


def test_the_seed_fixes_the_episodes() -> None:
    parts = parts_for([lambda: OneStep(random=True)] * 2)
    assert scores(parts, 6).returns == scores(parts, 6).returns
    assert not set(scores(parts, 6).returns) & set(scores(parts, 6, seed=1).returns)
    assert len(set(scores(parts, 6).returns)) == 6


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_evaluation_does_not_change_weights_and_statistics(compute: str) -> None:
    parts = parts_for([lambda: FixedLength(3)] * 2, compute=compute, normalize_observations=True)
    before = {name: tensor.clone() for name, tensor in parts.policy.state_dict().items()}
    scores(parts, 4, deterministic=False)
    after = parts.policy.state_dict()
    assert "preprocess.moments.count" in before
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_evaluation_uses_the_current_statistics() -> None:
    for compute in ("numpy", "autograd"):
        parts = parts_for([OneStep], compute=compute, normalize_observations=True)
        with torch.no_grad():
            parts.policy.actor.layers[0].weight.fill_(1.0)
            parts.policy.action.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 4))
        for mean, best in ((-1.0, 1.0), (1.0, 0.0)):  # the observation is 0: above the first mean, below the second
            parts.policy.preprocess.moments.mean.fill_(mean)
            assert scores(parts, 1).returns == (best,), compute


def test_summary() -> None:
    summary = Scores((1.0, 3.0), (10, 20)).summary()
    assert summary == {
        "mean": 2,
        "std": 1,
        "min": 1,
        "max": 3,
        "mean_length": 15,
        "success_rate": None,
        "episodes": 2,
        "returns": [1, 3],
    }
