"""Acting with an agent that has a memory: single environments and batches, episodes that begin at different times."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from proxrl.config import Config
from proxrl.envs.spaces import Masked, space_to_json
from proxrl.errors import ProxRLError
from proxrl.look.agent import Agent
from proxrl.policy.networks import make_policy

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
ROWS = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3)).astype(np.float32)  # [T, N, 3]
# All allow the action (1, 1).
MASKS = np.random.default_rng(1).integers(0, 2, (6, 4, 5)) | np.array([0, 1, 0, 0, 1])
ACTIONS = spaces.MultiDiscrete([3, 2])


def memory_agent(action: Any = ACTIONS, obs: Any = VECTOR, **settings: Any) -> Agent:
    """Return an agent with random weights that are large enough for distinct distributions."""
    config = Config(**{"hidden_sizes": (8,), "memory": "lstm", "memory_size": 6, **settings})
    torch.manual_seed(1)
    weights = make_policy(config, obs, action).state_dict()
    tensors = {f"policy.{name}": tensor + 0.5 * torch.randn(tensor.shape) for name, tensor in weights.items()}
    state = {"step": 0, "observation_space": space_to_json(obs), "action_space": space_to_json(action)}
    return Agent(config, tensors, state)


@pytest.mark.parametrize("settings", [{"trunk": "separate"}, {"memory": "gru", "memory_layers": 2, "trunk": "shared"}])
def test_an_agent_remembers_between_calls_and_looking_changes_nothing(settings: dict[str, Any]) -> None:
    agent = memory_agent(**settings)
    policy, starts = agent.policy, torch.tensor([True])
    state = policy.initial_state(1)
    for step, row in enumerate(ROWS[:, 0]):
        with torch.no_grad():
            expected, value, state = policy(torch.from_numpy(row[None]), state, starts)
        starts = torch.tensor([False])
        for _ in range(2):
            distribution = agent.distribution(row)
            assert np.allclose(distribution.probabilities[0], expected.parts[0].log_probs.exp()[0], atol=1e-6)
            assert agent.value(row) == pytest.approx(value.item(), abs=1e-6)
            assert agent.log_prob(row, [1, 1]) == pytest.approx(expected.log_prob(torch.tensor([[1, 1]])).item(), abs=1e-5)
        assert np.array_equal(agent.act(row), distribution.mode()), step
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(agent.state, state, strict=True))
    first = memory_agent(**settings)
    assert agent.value(ROWS[0, 0]) != pytest.approx(first.value(ROWS[0, 0]), abs=1e-4)
    agent.reset()
    assert agent.value(ROWS[0, 0]) == first.value(ROWS[0, 0])


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("by_number", [False, True])
def test_environments_of_a_batch_begin_episodes_at_different_times(by_number: bool, stack: int) -> None:
    """What a batch of environments computes is what four agents compute, one for each."""
    space = Masked(spaces.Box(-1, 1, (3 * stack,), np.float32), 5)
    agent, *singles = (memory_agent(obs=space, frame_stack=stack) for _ in range(5))
    ended = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    agent.reset([1, 2])  # before the first observation, all of them begin
    for t, rows in enumerate(ROWS):
        values = agent.value(rows)
        log_probs = agent.log_prob(rows, np.ones((4, 2)), mask=MASKS[t])
        actions = agent.act(rows, mask=MASKS[t])
        for n, single in enumerate(singles):
            assert values[n] == pytest.approx(single.value(rows[n]), abs=1e-5), (t, n)
            assert log_probs[n] == pytest.approx(single.log_prob(rows[n], [1, 1], mask=MASKS[t, n]), abs=1e-4)
            assert np.array_equal(actions[n], single.act(rows[n], mask=MASKS[t, n]))
        if t < len(ended):
            agent.reset(np.flatnonzero(ended[t]) if by_number else ended[t])
            for n in np.flatnonzero(ended[t]):
                singles[n].reset()


def test_another_number_of_environments_needs_a_reset() -> None:
    agent = memory_agent()
    agent.act(ROWS[0])
    state = agent.state
    for call in (agent.act, agent.value, agent.distribution):
        with pytest.raises(ProxRLError, match=r"^there are 2 observations, but there were 4 before.* call agent\.reset\(\)"):
            call(ROWS[1, :2])
    assert all(torch.equal(one, other) for one, other in zip(agent.state, state, strict=True))
    agent.act(ROWS[1])
    agent.reset()
    assert agent.act(ROWS[1, :2]).shape == (2, 2)
    feed_forward = memory_agent(memory=None)
    feed_forward.act(ROWS[0])
    assert feed_forward.act(ROWS[0, 0]).shape == (2,)


@pytest.mark.parametrize("envs", [[True, False], [4], [0.5], True, "first", [[True] * 4]])
def test_rows_that_do_not_exist(envs: Any) -> None:
    agent = memory_agent()
    agent.act(ROWS[0])
    with pytest.raises(ProxRLError, match=r"give a mask of shape \(4,\), or numbers from 0 to 3") as caught:
        agent.reset(envs)
    assert "\n" not in str(caught.value)
    agent.reset([])
    assert not agent.starts.any()
