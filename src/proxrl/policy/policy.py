"""The whole policy: preprocess → encoder → memory → heads. networks.py chooses the networks and builds it."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn

from proxrl.envs.masks import Guard
from proxrl.policy.distributions import Distribution
from proxrl.policy.heads import Head
from proxrl.policy.memory import NoMemory, PolicyMemory
from proxrl.policy.preprocess import Preprocess
from proxrl.types import State, Tree


class Trunk(NamedTuple):
    """What turns observations into features: an encoder, then a memory."""

    encoder: nn.Module
    memory: PolicyMemory


class PolicyOutputs(NamedTuple):
    """What the policy computes from rows of observations."""

    distribution: Distribution
    value: Tensor  # [B, H]
    state: State  # after the last step of each sequence
    features: Tensor  # [B, F] from which the action is chosen


class Policy(nn.Module):
    """`policy(obs, state, starts) -> (distribution, value, state)`; `starts` marks observations that begin an episode.

    Observations are rows [B, ...]: of different environments, or with memory whole sequences (see memory.py). Without memory, the
    state is empty and rows are independent of each other. Values are [B, H], one for each value stream. The update calls
    `preprocess` once per rollout, because its statistics are frozen until the update ends, and `core` for every minibatch.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        guard: Guard,
        actor: Trunk,
        critic: Trunk | None,
        action: nn.Module,
        head: Head,
        value: nn.Module,
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.guard = guard
        self.masked = guard.masked  # observations are {"observation": ..., "action_mask": ...}
        self.actor, self.memory = actor
        self.critic = None if critic is None else critic.encoder  # None if the value uses the actor's features
        self.critic_memory = NoMemory() if critic is None else critic.memory
        self.action = action  # from features to the head's inputs
        self.head = head
        self.value = value  # from the critic's features
        # Multiplications of a forward pass on one observation, counted by engine/threads.py; None if there are few.
        self.work_per_row: float | None = None

    @property
    def recurrent(self) -> bool:
        return self.memory.size > 0

    @property
    def acts_with_value(self) -> bool:
        """Whether acting computes values too: because they come from the same network, or because their memory must follow."""
        return self.critic is None or self.recurrent

    @property
    def value_streams(self) -> int:
        return self.value.out_features if isinstance(self.value, nn.Linear) else 1

    def initial_state(self, count: int) -> State:
        """Return the memory before the first step of an episode, for `count` environments."""
        return self.memory.initial_state(count) + self.critic_memory.initial_state(count)

    def forward(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        return self.core(self.preprocess(obs), state, starts)[:3]

    def core(self, obs: Tree, state: State, starts: Tensor | None, perturbation: tuple[Tensor, ...] = ()) -> PolicyOutputs:
        """Run all networks on preprocessed observations; `perturbation` is added to the inputs of the head."""
        inputs, mask = self.split(obs)
        features, actor_state = self.memory(self.actor(inputs), state[: self.memory.size], starts)
        value, critic_state = self._value(inputs, features, state[self.memory.size :], starts)
        parameters = self.action(features).float()
        for moves in perturbation:
            parameters = parameters + moves
        return PolicyOutputs(self.head(parameters, mask), value, actor_state + critic_state, features)

    def act(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, State]:
        """Return the distribution alone, from preprocessed observations: stepping environments needs no values.

        The critic's memory, if there is one, stays as it was.
        """
        inputs, mask = self.split(obs)
        features, actor_state = self.memory(self.actor(inputs), state[: self.memory.size], starts)
        return self.head(self.action(features).float(), mask), actor_state + state[self.memory.size :]

    def values(self, obs: Tree, state: State, starts: Tensor | None) -> Tensor:
        """Return the values alone, from preprocessed observations."""
        inputs, _ = self.split(obs)
        features = None
        if self.critic is None:
            features, _ = self.memory(self.actor(inputs), state, starts)
        return self._value(inputs, features, state[self.memory.size :], starts)[0]

    def _value(self, inputs: Tree, features: Tensor | None, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        """Return values [B, H], from the actor's features if the critic shares them, and the critic's own memory."""
        if self.critic is not None:
            features, state = self.critic_memory(self.critic(inputs), state, starts)
        value: Tensor = self.value(features)
        return (value if value.dim() == 2 else value.unsqueeze(-1)), state

    def split(self, obs: Tree) -> tuple[Tree, Tensor | None]:
        """Separate preprocessed observations into the networks' inputs and the action mask."""
        return (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)

    def groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of the policy, and those of the value alone, which may have their own optimizer."""
        policy = list(_trainable(self.actor, self.memory, self.action, self.head))
        shared = {id(parameter) for parameter in policy}
        return policy, [
            parameter for parameter in _trainable(self.critic, self.critic_memory, self.value) if id(parameter) not in shared
        ]


def _trainable(*modules: nn.Module | None) -> Iterator[nn.Parameter]:
    """Yield each trainable parameter once; a network may have frozen parameters too."""
    yielded: set[int] = set()
    for parameter in chain.from_iterable(module.parameters() for module in modules if module is not None):
        if parameter.requires_grad and id(parameter) not in yielded:
            yielded.add(id(parameter))
            yield parameter
