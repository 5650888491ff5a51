"""The policy as one function of plain tensors: the names and contents of its inputs and outputs."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.config import Config
from proxrl.export.deployed import Deployed
from proxrl.policy.memory import State
from proxrl.policy.networks import make_policy


class Summing(nn.Module):
    """A memory whose state is the sum of all features so far."""

    def initial_state(self, num_envs: int) -> State:
        return (torch.zeros(num_envs, 4),)

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        total = state[0] + features
        return total, (total,)


def test_the_state_of_a_memory_is_an_input_and_an_output() -> None:
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
    torch.testing.assert_close(outputs["value"], policy(obs, (), None)[1])
