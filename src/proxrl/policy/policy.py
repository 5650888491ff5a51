"""The policy whole: preprocess → encoder → memory → heads."""

import gymnasium
import torch
from torch import Tensor, nn

from proxrl.config import Config
from proxrl.policy.encoders import MLP, orthogonal
from proxrl.policy.heads import CategoricalHead, Distribution, GaussianHead, make_head
from proxrl.policy.memory import NoMemory, State
from proxrl.policy.preprocess import Flatten, make_preprocess
from proxrl.seeding import Purpose, integer_seed
from proxrl.types import Tree


class Policy(nn.Module):
    """`policy(obs, state, starts) -> (distribution, value, state)`; `starts` marks observations that begin an episode.

    `preprocess` is done once per rollout, since its statistics are frozen until the update ends; `core` is what the update
    repeats.
    """

    def __init__(
        self, preprocess: Flatten, actor: MLP, critic: MLP, memory: NoMemory, head: CategoricalHead | GaussianHead
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.actor = actor
        self.critic = critic
        self.memory = memory
        self.head = head
        self.value = orthogonal(nn.Linear(critic.output_size, 1), gain=1.0)

    def forward(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        return self.core(self.preprocess(obs), state, starts)

    def core(self, obs: Tensor, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        """From preprocessed observations."""
        distribution, state = self.act(obs, state, starts)
        return distribution, self.value(self.critic(obs)).squeeze(-1), state

    def act(self, obs: Tensor, state: State, starts: Tensor | None) -> tuple[Distribution, State]:
        """The actor alone: stepping environments needs no values."""
        features, state = self.memory(self.actor(obs), state, starts)
        return self.head(features), state


def make_policy(config: Config, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> Policy:
    """Separate MLPs for policy and value (core detail 13). The seed alone fixes the weights, on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, Purpose.WEIGHTS))
        preprocess = make_preprocess(observation_space, config.normalize_observations, config.clip_observations)
        actor, critic = (MLP(preprocess.output_size, config.hidden_sizes, config.activation) for _ in range(2))
        head = make_head(actor.output_size, action_space, config.log_std_init)
        return Policy(preprocess, actor, critic, NoMemory(), head)
