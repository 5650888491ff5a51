"""What a policy remembers between steps. Feed-forward is memory with an empty state, so there is one call signature."""

from typing import TypeAlias

from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, ...]  # each [N, ...]


class NoMemory(nn.Module):
    """Features pass through; the state is empty."""

    def initial_state(self, num_envs: int) -> State:
        return ()

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        return features, state
