"""Abnormal metrics are named with what they mean, and normal ones are not."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from proxrl.config import Config
from proxrl.log.health import ITERATIONS, Health, lowest_entropy

NORMAL = {"losses/approx_kl": 0.02, "losses/clipfrac": 0.2, "losses/entropy": 0.5, "losses/explained_variance": 0.8}


def problems(
    metrics: dict[str, float], iterations: int = 3 * ITERATIONS, progress: float = 0.1, **settings: float
) -> dict[str, str]:
    health = Health(Config(env="CartPole-v1", **settings), spaces.Discrete(2))
    for _ in range(iterations):
        health.observe(NORMAL | metrics, progress)
    return {reading.text.rpartition(" ")[0]: reading.problem for reading in health.readings() if reading.problem}


def test_a_normal_run_has_no_problems() -> None:
    health = Health(Config(env="CartPole-v1"), spaces.Discrete(2))
    assert health.readings() == []
    for _ in range(100):
        health.observe(NORMAL, 0.5)
    assert health.readings() == [
        ("KL 0.0200", ""),
        ("clip fraction 0.20", ""),
        ("entropy 0.50", ""),
        ("explained variance 0.80", ""),
    ]


@pytest.mark.parametrize(
    ("metrics", "label", "meaning"),
    [
        ({"losses/approx_kl": 0.11}, "KL", "the policy changes too fast; lower --learning-rate or --epochs"),
        ({"losses/clipfrac": 0.41}, "clip fraction", "too many steps leave the clip range"),
        ({"losses/entropy": 0.006}, "entropy", "the policy hardly explores any more; raise --entropy-coef"),
        ({"losses/explained_variance": -0.2}, "explained variance", "predicts worse than a constant"),
    ],
)
def test_an_abnormal_metric_is_explained(metrics: dict[str, float], label: str, meaning: str) -> None:
    found = problems(metrics)
    assert found.keys() == {label}
    assert meaning in found[label]


def test_false_alarms_are_rare() -> None:
    assert problems({"losses/approx_kl": 0.11}, iterations=ITERATIONS - 1) == {}
    assert problems({"losses/explained_variance": -0.2}, iterations=3 * ITERATIONS - 1) == {}, "it is low at first"
    assert problems({"losses/entropy": 0.006}, progress=0.6) == {}, "a policy that has learned may be deterministic"
    assert problems({"losses/approx_kl": 0.11}, target_kl=0.05) == {}, "a target of 0.05 wants large steps"
    assert problems({"losses/approx_kl": 0.16}, target_kl=0.05).keys() == {"KL"}
    health = Health()
    for iteration in range(100):
        health.observe(NORMAL | {"losses/approx_kl": 5.0 if iteration % 3 == 0 else 0.02}, 0.1)
        assert not any(reading.problem for reading in health.readings()), "single bad updates are harmless"


def test_metrics_that_were_not_logged_are_not_shown() -> None:
    health = Health()
    health.observe({"losses/explained_variance": 0.3}, 0.0)  # only the value function has learned
    assert health.readings() == [("explained variance 0.30", "")]


def test_lowest_entropy_of_each_action_space() -> None:
    assert lowest_entropy(spaces.Discrete(4)) == pytest.approx(0.01 * math.log(4))
    assert lowest_entropy(spaces.MultiDiscrete([2, 8])) == pytest.approx(0.01 * math.log(16))
    assert lowest_entropy(spaces.MultiBinary(3)) == pytest.approx(0.01 * math.log(8))
    # A Gaussian with a standard deviation of 0.01 has an entropy of -3.19 per dimension.
    assert lowest_entropy(spaces.Box(-1, 1, (2,), np.float32)) == pytest.approx(-6.37, abs=0.01)
    assert lowest_entropy(spaces.Dict(a=spaces.Discrete(2))) == lowest_entropy(None) == -math.inf
