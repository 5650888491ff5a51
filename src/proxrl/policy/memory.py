"""The memory of a policy. A feed-forward policy has a memory with an empty state, so all policies are called in the same way."""

from typing import TypeAlias

from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, ...]  # each [N, ...]


class NoMemory(nn.Module):
    """Returns features unchanged; the state is empty."""

    def initial_state(self, num_envs: int) -> State:
        return ()

    def forward(self, features: Tensor, state: State, starts: Tensor | None) -> tuple[Tensor, State]:
        return features, state
