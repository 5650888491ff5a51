"""The policy whole: preprocess → encoder → memory → heads. Which networks it is made of is decided in networks.py."""

from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn

from proxrl.envs.masks import Guard
from proxrl.policy.distributions import Distribution
from proxrl.policy.heads import Head
from proxrl.policy.memory import NoMemory, State
from proxrl.policy.preprocess import Preprocess
from proxrl.types import Tree


class Policy(nn.Module):
    """`policy(obs, state, starts) -> (distribution, value, state)`; `starts` marks observations that begin an episode.

    `preprocess` is done once per rollout, since its statistics are frozen until the update ends; `core` is what the update
    repeats. Rows are independent but for memory: all tensors are [B, ...].
    """

    def __init__(
        self,
        preprocess: Preprocess,
        guard: Guard,
        actor: nn.Module,
        critic: nn.Module | None,
        memory: NoMemory,
        action: nn.Module,
        head: Head,
        value: nn.Module,
    ) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.guard = guard
        self.masked = guard.masked  # observations are {"observation": ..., "action_mask": ...}
        self.actor = actor
        self.critic = critic  # None where the value is read off the actor's features
        self.memory = memory
        self.action = action  # from features to what the head takes
        self.head = head
        self.value = value  # from the critic's features

    def forward(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        return self.core(self.preprocess(obs), state, starts)

    def core(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        """From preprocessed observations."""
        seen, mask = self.split(obs)
        features: Tensor = self.actor(seen)
        value: Tensor = self.value(features if self.critic is None else self.critic(seen))
        remembered, state = self.memory(features, state, starts)
        return self.head(self.action(remembered).float(), mask), value.reshape(value.shape[0]), state

    def act(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, State]:
        """The actor alone: stepping environments needs no values."""
        seen, mask = self.split(obs)
        features, state = self.memory(self.actor(seen), state, starts)
        return self.head(self.action(features).float(), mask), state

    def values(self, obs: Tree) -> Tensor:
        """The critic alone, from preprocessed observations."""
        seen, _ = self.split(obs)
        value: Tensor = self.value((self.actor if self.critic is None else self.critic)(seen))
        return value.reshape(value.shape[0])

    def split(self, obs: Tree) -> tuple[Tree, Tensor | None]:
        """What networks see, and what is allowed."""
        return (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)

    def groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """What the policy is made of, and what only the value is: they may have optimisers and learning rates of their own."""
        acting = list(_trainable(self.actor, self.memory, self.action, self.head))
        known = {id(parameter) for parameter in acting}
        return acting, [parameter for parameter in _trainable(self.critic, self.value) if id(parameter) not in known]


def _trainable(*modules: nn.Module | None) -> Iterator[nn.Parameter]:
    """What gradients change; a network may hold frozen parameters too."""
    seen: set[int] = set()
    for parameter in chain.from_iterable(module.parameters() for module in modules if module is not None):
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter
