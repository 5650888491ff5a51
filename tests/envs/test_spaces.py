"""Comparing the spaces of environments with those of a trained policy."""

import numpy as np
from gymnasium import spaces

from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.envs.spaces import space_difference
from sample_envs import Counter

OBSERVATION, ACTION = Counter.observation_space, Counter.action_space


def test_the_difference_between_spaces_names_the_space_and_both_forms() -> None:
    environments = InProcessEnvs([Counter])
    assert space_difference(environments, OBSERVATION, ACTION) is None
    larger = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    assert space_difference(environments, larger, ACTION) == (
        f"the environment's observation space is {environments.observation_space}, but the policy was trained with {larger}"
    )
    assert space_difference(environments, OBSERVATION, spaces.Discrete(3)) == (
        "the environment's action space is Discrete(2), but the policy was trained with Discrete(3)"
    )


def test_bounds_and_dtypes_of_spaces_may_differ() -> None:
    environments = InProcessEnvs([Counter])
    assert space_difference(environments, spaces.Box(-1, 1, (2,), np.float32), ACTION) is None
