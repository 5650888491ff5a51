"""What a runtime without ProxRL gets: the same way from a head's actions to the environment's, in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from any_space import SEEDS, boxes, discretes, multi_binaries, multi_discretes
from proxrl.config import Config
from proxrl.export.deployed import Deployed, make_unscale
from proxrl.policy.memory import State
from proxrl.policy.networks import make_policy
from proxrl.policy.product import make_head

MANY = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow], database=None)


@given(st.data(), st.sampled_from(["clip", "tanh", "beta"]), SEEDS)
@MANY
def test_unscaling_is_to_env_in_torch(data: Any, distribution: str, seed: int) -> None:
    leaves = st.one_of(boxes(bounded=distribution != "clip"), discretes(), multi_discretes(), multi_binaries())
    space = data.draw(leaves)
    head = make_head(space, Config(action_distribution=distribution))
    rng = np.random.default_rng(seed)
    law = head(torch.from_numpy(rng.normal(0, 4, (9, head.inputs)).astype(np.float32)))
    for action in (law.sample(torch.from_numpy(head.noise(rng, 9))), law.mode()):
        theirs, ours = head.to_env(action.detach().numpy()), make_unscale(head)(action).detach().numpy()
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if not isinstance(space, spaces.Box):
            np.testing.assert_array_equal(ours, theirs)
        else:
            reach = np.where(np.isfinite(space.high - space.low), space.high - space.low, 1)
            assert np.max(np.abs(ours - theirs) / reach) < 1e-6
            assert all(space.contains(row) for row in ours)


@pytest.mark.parametrize("distribution", ["tanh", "beta"])
def test_the_width_of_the_widest_box_does_not_overflow(distribution: str) -> None:
    space = spaces.Box(-3e38, 3e38, (2,), np.float32)
    head = make_head(space, Config(action_distribution=distribution))
    action = torch.tensor([[0.0, 0.25], [0.5, 1.0]])
    ours = make_unscale(head)(action).numpy()
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, head.to_env(action.numpy()), rtol=1e-6, atol=1e31)


class Summing(nn.Module):
    """A memory whose state is the sum of the features so far."""

    def initial_state(self, num_envs: int) -> State:
        return (torch.zeros(num_envs, 4),)

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        total = state[0] + features
        return total, (total,)


def test_a_memory_has_its_state_among_inputs_and_outputs() -> None:
    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    config = Config(hidden_sizes=(4,))
    policy = make_policy(config, observation_space, action_space)
    policy.memory = Summing()  # type: ignore[assignment]
    deployed = Deployed(policy, config, observation_space, action_space)
    assert [(one.name, one.shape) for one in deployed.inputs] == [("observation", (3,)), ("state.0", (4,))]
    obs = torch.rand(2, 3)
    first = deployed(obs, torch.zeros(2, 4))
    second = deployed(obs, first["next_state.0"])
    torch.testing.assert_close(second["next_state.0"], 2 * policy.actor(obs))
    assert list(first) == ["action", "logits", "value", "next_state.0"]


def test_names_are_unique_where_keys_hold_dots() -> None:
    box = spaces.Box(-1, 1, (1,), np.float32)
    observation_space = spaces.Dict({"a.b": box, "a": spaces.Dict({"b": box})})
    config = Config(hidden_sizes=(4,))
    action_space = spaces.Tuple([spaces.Discrete(2), box])
    policy = make_policy(config, observation_space, action_space)
    deployed = Deployed(policy, config, observation_space, action_space)
    assert [one.name for one in deployed.inputs] == ["observation.a.b", "observation.a.b_"]
    obs = {"a": {"b": torch.rand(2, 1)}, "a.b": torch.rand(2, 1)}
    outputs = deployed(obs["a"]["b"], obs["a.b"])  # type: ignore[index]
    assert list(outputs) == ["action.0", "action.1", "logits.0", "mean.1", "log_std.1", "value"]
    torch.testing.assert_close(outputs["value"], policy(obs, (), None)[1])
