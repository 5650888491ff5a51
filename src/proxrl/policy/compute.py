"""How a policy's arithmetic is done: acting step by step, evaluating a rollout in one pass, and gradients for the update.

Two ways share this contract and agree to float precision (tests/policy/test_compute.py): `TorchCompute` runs any policy by
autograd; `NumpyCompute` (small.py) runs small MLPs on a CPU several times faster, because there nearly all of the time is
overhead.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxrl.policy.flat import FlatParameters
from proxrl.policy.memory import State
from proxrl.policy.policy import Policy
from proxrl.tree import tree_map
from proxrl.types import Array, Batch, Rollout, Tree


class Evaluation(NamedTuple):
    """A rollout as the policy that acted sees it. Rows are in the order of time, then environment: row t * N + n."""

    obs: Tree  # [T * N, ...] preprocessed
    action: Array  # [T * N, ...]
    log_prob: Array  # [T, N]
    value: Array  # [T, N] of the observation
    next_value: Array  # [T, N] of its true successor


class Outputs(NamedTuple):
    """What the loss is made of, or its gradient with respect to each."""

    log_prob: Array  # [B]
    entropy: Array  # [B]
    value: Array  # [B]

    def only(self, policy: bool, value: bool) -> "Outputs":
        """With zeros for what is not to learn."""
        return self if policy and value else Outputs(self.log_prob * policy, self.entropy * policy, self.value * value)


class Compute(Protocol):
    """`library` is the module whose functions take this compute's arrays: numpy or torch."""

    library: ClassVar[Any]

    def freeze(self) -> None:
        """A rollout begins: read the statistics that hold until its update ends."""

    def initial_state(self, num_envs: int) -> State: ...

    def act(
        self, obs: Tree, state: State, starts: NDArray[np.bool_], noise: NDArray[np.float32] | None
    ) -> tuple[NDArray[Any], State]:
        """Actions [N, ...]: sampled with the noise, or the most likely ones without."""

    def evaluate(self, rollout: Rollout) -> Evaluation: ...

    def array(self, values: NDArray[Any]) -> Array:
        """A numpy array as this compute's kind, where it computes."""

    def forward(self, batch: Batch) -> Outputs: ...

    def backward(self, gradient: Outputs, terms: Sequence[Array]) -> None:
        """Add to the flat gradient, from the loss's gradient at the outputs of the last `forward`; terms are carried along."""


class TorchCompute:
    """Any policy on any device, by autograd."""

    library: ClassVar[Any] = torch

    def __init__(self, policy: Policy, parameters: FlatParameters) -> None:
        self.policy, self.parameters = policy, parameters
        self.device = parameters.values.device
        self.outputs: Outputs | None = None

    def freeze(self) -> None:
        """Statistics are read from the policy's buffers, which nobody changes meanwhile."""

    def initial_state(self, num_envs: int) -> State:
        return self.policy.memory.initial_state(num_envs)

    @torch.no_grad()
    def act(
        self, obs: Tree, state: State, starts: NDArray[np.bool_], noise: NDArray[np.float32] | None
    ) -> tuple[NDArray[Any], State]:
        distribution, state = self.policy.act(self.prepared(obs), state, self.array(starts))
        action = distribution.mode() if noise is None else distribution.sample(self.array(noise))
        return action.cpu().numpy(), state

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Evaluation:
        steps, num_envs = rollout.reward.shape
        rows = self.prepared(tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.obs))
        obs = tree_map(lambda leaf: leaf[:-num_envs], rows)
        action = self.array(rollout.action).flatten(0, 1)
        distribution, value, _ = self.policy.core(obs, (), None)
        log_prob = distribution.log_prob(action).view(steps, num_envs)
        value = value.view(steps, num_envs)
        last = self.policy.values(tree_map(lambda leaf: leaf[-num_envs:], rows))
        next_value = torch.cat([value[1:], last[None]])
        t, n = (self.array(index) for index in rollout.final_index)
        if rollout.final_obs is not None:
            next_value[t, n] = self.policy.values(self.prepared(rollout.final_obs))
        else:
            next_value[t, n] = value[t, n]
        return Evaluation(obs, action, log_prob, value, next_value)

    def prepared(self, obs: Tree) -> Any:
        return self.policy.preprocess(tree_map(self.array, obs))

    def array(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def forward(self, batch: Batch) -> Outputs:
        distribution, value, _ = self.policy.core(batch.obs, (), None)
        self.outputs = Outputs(distribution.log_prob(batch.action), distribution.entropy(), value)
        return Outputs(*(output.detach() for output in self.outputs))

    def backward(self, gradient: Outputs, terms: Sequence[Array]) -> None:
        self.parameters.carried += torch.stack(list(terms))
        assert self.outputs is not None
        # The entropy of a fixed deviation, for one, depends on no parameter.
        pairs = [(output, slope) for output, slope in zip(self.outputs, gradient, strict=True) if output.requires_grad]
        outputs, slopes = zip(*pairs, strict=True)
        torch.autograd.backward(outputs, slopes)
        self.outputs = None  # frees what autograd kept
