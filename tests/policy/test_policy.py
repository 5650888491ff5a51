"""The initial weights of a policy, what its parts share, and its outputs."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxrl.config import Config
from proxrl.policy.networks import make_policy
from proxrl.policy.policy import Policy

OBS = spaces.Box(-1, 1, (6,), np.float32)
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)


def make(action_space: spaces.Space = DISCRETE, **changes: Any) -> Policy:
    return make_policy(Config(**{"hidden_sizes": (8, 5), **changes}), OBS, action_space)


def gain(weight: torch.Tensor) -> float:
    """Check that the rows or columns, whichever are fewer, are orthogonal and of the same length, and return it."""
    rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
    product = rows @ rows.T
    diagonal = product.diagonal()
    assert torch.allclose(product, torch.diag(diagonal), atol=1e-5)
    assert torch.allclose(diagonal, diagonal.mean().expand_as(diagonal), rtol=1e-4)
    return math.sqrt(diagonal.mean().item())


@pytest.mark.parametrize("action_space", [DISCRETE, BOX])
def test_orthogonal_gains_and_zero_biases(action_space: spaces.Space) -> None:
    policy = make(action_space)
    hidden = [*policy.actor.layers, *policy.critic.layers]
    assert len(hidden) == 4
    with torch.no_grad():
        assert [gain(layer.weight) for layer in hidden] == pytest.approx([math.sqrt(2)] * 4, rel=1e-4)
        assert gain(policy.action.weight) == pytest.approx(0.01, rel=1e-4)
        assert gain(policy.value.weight) == pytest.approx(1, rel=1e-4)
    assert all((layer.bias == 0).all() for layer in (*hidden, policy.action, policy.value))


def test_policy_and_value_share_no_weight() -> None:
    policy = make()
    obs = torch.randn((4, 6), generator=torch.Generator().manual_seed(0))
    distribution, value, _ = policy(obs, (), None)
    value.sum().backward()
    assert all(parameter.grad is None for parameter in (*policy.actor.parameters(), *policy.action.parameters()))
    assert all(parameter.grad is not None for parameter in policy.critic.parameters())
    policy.zero_grad(set_to_none=True)
    distribution.entropy().sum().backward()
    assert all(parameter.grad is None for parameter in (*policy.critic.parameters(), *policy.value.parameters()))
    assert not torch.equal(policy.actor.layers[0].weight, policy.critic.layers[0].weight)


def test_the_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make(seed=3).state_dict()
    torch.manual_seed(2)
    torch.rand(7)
    second = make(seed=3).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = make(seed=4).state_dict()
    assert not torch.equal(first["actor.layers.0.weight"], other["actor.layers.0.weight"])


def test_making_a_policy_does_not_change_the_global_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make()
    assert torch.equal(torch.rand(3), expected)


def test_call_signature_and_shapes() -> None:
    for action_space, per_row in ((DISCRETE, ()), (BOX, (2,))):
        policy = make(action_space)
        distribution, value, state = policy(torch.zeros(4, 6), (), torch.ones(4, dtype=torch.bool))
        assert value.shape == (4, 1)  # one value stream
        assert distribution.entropy().shape == (4,)
        assert distribution.mode().shape == (4, *per_row)
        assert state == ()


def test_the_initial_policy_is_nearly_uniform() -> None:
    obs = 10 * torch.randn((50, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert make()(obs, (), None)[0].entropy().min() > math.log(3) - 1e-3
        assert make(BOX)(obs, (), None)[0].mode().abs().max() < 0.1


def test_statistics_are_in_the_state_dict() -> None:
    names = make(normalize_observations=True).state_dict().keys()
    assert {"preprocess.moments.count", "preprocess.moments.mean", "preprocess.moments.variance"} <= names
    assert not any(name.startswith("preprocess") for name in make(normalize_observations=False).state_dict())


def test_whitening_by_hand() -> None:
    preprocess = make_policy(Config(normalize_observations=True, clip_observations=2.0), OBS, DISCRETE).preprocess
    preprocess.moments.mean.fill_(1.0)
    preprocess.moments.variance.fill_(4.0)
    assert preprocess(torch.tensor([[1.0, 3.0, -1.0, 4.0, 100.0, -100.0]]))[0].tolist() == pytest.approx([0, 1, -1, 1.5, 2, -2])
