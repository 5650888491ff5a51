"""Probe environments: each one requires one more thing to work than the one before, and has a known solution."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import NextStepEnvs, assemble, train
from proxrl.build import Parts
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs

SEEDS = (1, 2)
POOLS = (InProcessEnvs, NextStepEnvs)


class Probe(gymnasium.Env):
    """One-step episodes with a constant observation. Subclasses change one thing each."""

    observation_space: Any = spaces.Box(-1, 1, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    length = 1
    ending = "terminated"

    def observe(self) -> Any:
        return np.zeros(1, np.float32)

    def reward(self, action: Any) -> float:
        return 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time, self.sign = 0, float(self.np_random.choice([-1.0, 1.0]))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        reward = self.reward(action)
        self.time += 1
        over = self.time == self.length
        return self.observe(), reward, over and self.ending == "terminated", over and self.ending == "truncated", {}


class ObservedTime(Probe):
    """Observes the number of the step."""

    observation_space = spaces.Discrete(4)

    def observe(self) -> Any:
        return self.time


class RewardAtTheEnd(ObservedTime):
    length = 2

    def reward(self, action: Any) -> float:
        return float(self.time == 1)


class FiniteSum(ObservedTime):
    length = 3


class TruncatedConstant(Probe):
    """A reward of 1 in every step, truncated after three steps; the constant observation does not show the time."""

    length = 3
    ending = "truncated"


class Signed(Probe):
    """Observes the sign of the reward."""

    def observe(self) -> Any:
        return np.array([self.sign], np.float32)

    def reward(self, action: Any) -> float:
        return self.sign


class Choice(Probe):
    action_space = spaces.Discrete(3, start=5)

    def reward(self, action: Any) -> float:
        return float(action == 6)


class Match(Signed):
    """The right action depends on the observation."""

    def reward(self, action: Any) -> float:
        return 1.0 if (action == 1) == (self.sign > 0) else -1.0


class Aim(Probe):
    """Two continuous actions, each with one best value."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reward(self, action: Any) -> float:
        return -float((action[0] - 0.5) ** 2 + 0.25 * (action[1] + 0.6) ** 2)


def learn(probe: type[Probe], seed: int, pool: Any = InProcessEnvs, **changes: Any) -> Parts:
    settings: dict[str, Any] = {
        "num_envs": 4,
        "rollout_steps": 16,
        "num_minibatches": 2,
        "epochs": 4,
        "hidden_sizes": (16,),
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "value_clip": None,
        "learning_rate": 0.01,
        "total_steps": 3200,
        "seed": seed,
    }
    config = Config(**{**settings, **changes}).validate()
    parts = assemble(config, pool([probe] * config.num_envs))
    train(parts)
    return parts


@torch.no_grad()
def values(parts: Parts, *observations: Any) -> list[float]:
    return [float(parts.policy(torch.tensor([obs]), (), None)[1]) for obs in observations]


@torch.no_grad()
def probabilities(parts: Parts, obs: Any) -> list[float]:
    return parts.policy(torch.tensor([obs]), (), None)[0].log_probs.exp()[0].tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pool", POOLS)
def test_value_of_a_constant_reward(pool: Any, seed: int) -> None:
    assert values(learn(Probe, seed, pool), [0.0]) == pytest.approx([1], abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pool", POOLS)
def test_a_reward_one_step_away_is_discounted_once(pool: Any, seed: int) -> None:
    assert values(learn(RewardAtTheEnd, seed, pool), 0, 1) == pytest.approx([0.9, 1], abs=0.03)


@pytest.mark.parametrize("seed", SEEDS)
def test_value_depends_on_the_observation(seed: int) -> None:
    assert values(learn(Signed, seed), [1.0], [-1.0]) == pytest.approx([1, -1], abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_better_action_is_chosen(seed: int) -> None:
    parts = learn(Choice, seed)
    assert probabilities(parts, [0.0])[1] > 0.95
    assert values(parts, [0.0]) == pytest.approx([1], abs=0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_the_best_action_for_each_observation_is_chosen(compute: str, seed: int) -> None:
    parts = learn(Match, seed, compute=compute, normalize_observations=True, normalize_rewards=True)
    assert probabilities(parts, [1.0])[1] > 0.95
    assert probabilities(parts, [-1.0])[0] > 0.95


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pool", POOLS)
def test_terminated_episodes_are_worth_their_finite_sum(pool: Any, seed: int) -> None:
    assert values(learn(FiniteSum, seed, pool), 0, 1, 2) == pytest.approx([1 + 0.9 + 0.81, 1.9, 1], abs=0.08)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pool", POOLS)
def test_truncated_episodes_are_worth_what_would_have_followed(pool: Any, seed: int) -> None:
    """1 / (1 - gamma); treating truncations as terminations would give 1.9 on average. This probe does not check which
    observation bootstraps, because there is only one."""
    parts = learn(TruncatedConstant, seed, pool, total_steps=9600, learning_rate=0.03)
    assert values(parts, [0.0]) == pytest.approx([10], abs=0.4)


@pytest.mark.parametrize("seed", SEEDS)
def test_continuous_actions_reach_their_best_values(seed: int) -> None:
    parts = learn(Aim, seed, total_steps=9600, learning_rate=0.02, entropy_coef=0.0)
    with torch.no_grad():
        distribution = parts.policy(torch.zeros(1, 1), (), None)[0]
    assert distribution.mean[0].tolist() == pytest.approx([0.5, -0.6], abs=0.1)
    assert distribution.log_std[0] < -1  # it began at 0: less exploration gives higher rewards
