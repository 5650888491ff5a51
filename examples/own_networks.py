"""Custom networks: from observations to the parameters of the action's distribution, and from observations to values.

python examples/own_networks.py
proxrl train CartPole-v1 --policy examples.own_networks:make_policy --value examples.own_networks:Value --value-kwargs width=64
"""

import gymnasium
import torch
from gymnasium import spaces
from torch import nn

import proxrl


def make_policy(observation_space: spaces.Box, action_space: spaces.Discrete, width: int = 16) -> nn.Module:
    """A Discrete action needs a logit for each choice, [B, n]; docs/spaces.md describes what other spaces need."""
    return nn.Sequential(
        nn.Linear(observation_space.shape[0], width),
        nn.LayerNorm(width),
        nn.SiLU(),
        nn.Linear(width, int(action_space.n)),
    )


class Value(nn.Module):
    """A class works too, because calling it builds a module. Values are [B] or [B, 1]."""

    def __init__(self, observation_space: spaces.Box, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(observation_space.shape[0], width)
        self.block = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features = torch.tanh(self.first(obs))
        return self.last(features + torch.tanh(self.block(features))).squeeze(1)


if __name__ == "__main__":
    settings = {"total_steps": 30_720, "learning_rate": 3e-3, "threads": 1}  # more would not help
    result = proxrl.train("CartPole-v1", policy=make_policy, value=Value, value_kwargs={"width": 64}, **settings, clobber=True)
    agent = proxrl.load(result.path)
    networks = {"policy": agent.policy.actor, "value": agent.policy.critic}
    sizes = {name: sum(parameter.numel() for parameter in network.parameters()) for name, network in networks.items()}
    print(f"parameters: policy {sizes['policy']}, value {sizes['value']}")
    env, total = gymnasium.make("CartPole-v1"), 0
    obs, _ = env.reset(seed=0)
    over = False
    while not over:
        obs, _, terminated, truncated, _ = env.step(agent.act(obs))
        total, over = total + 1, terminated or truncated
    print(f"the pole stays up for {total} steps")
