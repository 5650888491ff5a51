"""The policy as one function of plain tensors: the names and contents of its inputs and outputs."""

import numpy as np
import torch
from gymnasium import spaces

from proxrl.config import Config
from proxrl.export.deployed import Deployed
from proxrl.policy.networks import make_policy

VECTOR = spaces.Box(-1, 1, (3,), np.float32)


def test_the_state_of_a_memory_is_an_input_and_an_output() -> None:
    config = Config(hidden_sizes=(4,), memory="lstm", memory_size=5, memory_layers=2)
    policy = make_policy(config, VECTOR, spaces.Discrete(2))
    deployed = Deployed(policy, config, VECTOR, spaces.Discrete(2))
    states = [(f"state.{n}", (2, 5)) for n in range(4)]  # hidden and cell, of the policy's memory and of the value's
    assert [(one.name, one.shape) for one in deployed.inputs] == [("observation", (3,)), *states]
    obs, zeros = torch.rand(2, 2, 3), [torch.zeros(3, 2, 5)[:2]] * 4
    first = deployed(obs[0], *zeros)
    second = deployed(obs[1], *(first[f"next_state.{n}"] for n in range(4)))
    assert list(first) == ["action", "logits", "value", *(f"next_state.{n}" for n in range(4))]
    sequences = policy(obs.transpose(0, 1).reshape(4, 3), policy.initial_state(2), torch.tensor([True, False, True, False]))
    torch.testing.assert_close(second["value"], sequences[1].view(2, 2)[:, 1])
    for n, state in enumerate(sequences[2]):
        torch.testing.assert_close(second[f"next_state.{n}"], state)
        assert state.abs().min() > 0


def test_the_memory_of_a_critic_that_sees_more_is_not_an_input() -> None:
    observation_space = spaces.Dict({"seen": VECTOR, "hidden": VECTOR})
    config = Config(hidden_sizes=(4,), memory="lstm", memory_size=5, actor_keys=("seen",))
    policy = make_policy(config, observation_space, spaces.Discrete(2))
    deployed = Deployed(policy, config, observation_space, spaces.Discrete(2))
    assert [one.name for one in deployed.inputs] == ["observation.seen", "state.0", "state.1"]
    outputs = deployed(torch.rand(2, 3), *[torch.zeros(2, 1, 5)] * 2)
    assert list(outputs) == ["action", "logits", "next_state.0", "next_state.1"]


def test_names_are_unique_if_keys_contain_dots() -> None:
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
    torch.testing.assert_close(outputs["value"], policy(obs, (), None)[1][:, 0])
