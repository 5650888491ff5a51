"""The whole policy: preprocess → encoder → memory → heads. networks.py chooses the networks and builds it."""

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

    All tensors are [B, ...], and rows are independent of each other. The update calls `preprocess` once per rollout, because its
    statistics are frozen until the update ends, and `core` for every minibatch.
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
        self.critic = critic  # None if the value uses the actor's features
        self.memory = memory
        self.action = action  # from features to the head's inputs
        self.head = head
        self.value = value  # from the critic's features
        # Multiplications of a forward pass on one observation, counted by engine/threads.py; None if there are few.
        self.work_per_row: float | None = None

    def forward(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        return self.core(self.preprocess(obs), state, starts)

    def core(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, Tensor, State]:
        """Return what `forward` does, from preprocessed observations."""
        inputs, mask = self.split(obs)
        features: Tensor = self.actor(inputs)
        value: Tensor = self.value(features if self.critic is None else self.critic(inputs))
        features, state = self.memory(features, state, starts)
        return self.head(self.action(features).float(), mask), value.reshape(value.shape[0]), state

    def act(self, obs: Tree, state: State, starts: Tensor | None) -> tuple[Distribution, State]:
        """Return the distribution alone, from preprocessed observations: stepping environments needs no values."""
        inputs, mask = self.split(obs)
        features, state = self.memory(self.actor(inputs), state, starts)
        return self.head(self.action(features).float(), mask), state

    def values(self, obs: Tree) -> Tensor:
        """Return the values alone, from preprocessed observations."""
        inputs, _ = self.split(obs)
        value: Tensor = self.value((self.actor if self.critic is None else self.critic)(inputs))
        return value.reshape(value.shape[0])

    def split(self, obs: Tree) -> tuple[Tree, Tensor | None]:
        """Separate preprocessed observations into the networks' inputs and the action mask."""
        return (obs["observation"], obs["action_mask"]) if self.masked else (obs, None)

    def groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters of the policy, and those of the value alone, which may have their own optimizer."""
        policy = list(_trainable(self.actor, self.memory, self.action, self.head))
        shared = {id(parameter) for parameter in policy}
        return policy, [parameter for parameter in _trainable(self.critic, self.value) if id(parameter) not in shared]


def _trainable(*modules: nn.Module | None) -> Iterator[nn.Parameter]:
    """Yield each trainable parameter once; a network may have frozen parameters too."""
    yielded: set[int] = set()
    for parameter in chain.from_iterable(module.parameters() for module in modules if module is not None):
        if parameter.requires_grad and id(parameter) not in yielded:
            yielded.add(id(parameter))
            yield parameter
