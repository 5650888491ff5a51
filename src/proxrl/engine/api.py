"""How a policy's arithmetic is done: acting step by step, evaluating a rollout in one pass, and gradients for the update.

Two classes implement this contract and agree to float precision (tests/engine/test_compute.py): `TorchCompute` (autograd.py)
runs any policy by autograd; `NumpyCompute` (numpy_mlp.py) runs small MLPs on a CPU several times faster, because there nearly
all of the time is overhead.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from proxrl.policy.memory import State
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

    def freeze(self, remember: bool = False) -> None:
        """A rollout begins: read the statistics that hold until its update ends, and where it pays keep what acting computes for
        `evaluate`.
        """

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
