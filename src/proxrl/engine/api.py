"""How a policy's arithmetic is done: acting step by step, evaluating a rollout, and gradients for the update.

Two classes implement this contract and agree to float precision (tests/engine/test_compute.py): `TorchCompute` (autograd.py)
runs any policy by autograd; `NumpyCompute` (numpy_mlp.py) runs small MLPs on a CPU several times faster, because nearly all of
the time of such a network is overhead.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from proxrl.policy.memory import State
from proxrl.types import ActingOutputs, Array, Batch, Rollout, Tree


class Evaluation(NamedTuple):
    """A rollout as the policy that acted sees it. Rows are in order of time, then environment: row t * N + n."""

    obs: Tree  # [T * N, ...] preprocessed
    action: Array  # [T * N, ...]
    log_prob: Array  # [T, N]
    value: Array  # [T, N] of the observation
    next_value: Array  # [T, N] of its true successor


class Outputs(NamedTuple):
    """What the loss is computed from, or the gradient of the loss with respect to each."""

    log_prob: Array  # [B]
    entropy: Array  # [B]
    value: Array  # [B]

    def only(self, policy: bool, value: bool) -> "Outputs":
        """Return a gradient that is zero for what does not learn."""
        return self if policy and value else Outputs(self.log_prob * policy, self.entropy * policy, self.value * value)


class Compute(Protocol):
    """`library` is the module whose functions take this compute's arrays: numpy or torch."""

    library: ClassVar[Any]

    def freeze(self) -> None:
        """Read the statistics and coefficients that hold until the next update ends. Called before acting begins."""

    def initial_state(self, num_envs: int) -> State: ...

    def act(
        self,
        obs: Tree,
        state: State,
        starts: NDArray[np.bool_],
        noise: NDArray[np.float32] | None,
        outputs: ActingOutputs | None = None,
    ) -> tuple[NDArray[Any], State]:
        """Return actions [N, ...], sampled with the noise or most likely without, and the next state of the memory.

        If policy and value share their network, acting computes all that `evaluate` needs and appends it to `outputs`.
        """

    def evaluate(self, rollout: Rollout) -> Evaluation: ...

    def array(self, values: NDArray[Any]) -> Array:
        """Convert a numpy array to an array of this compute's library, on its device."""

    def forward(self, batch: Batch) -> Outputs: ...

    def backward(self, gradient: Outputs, terms: Sequence[Array]) -> None:
        """Backpropagate `gradient` from the last `forward`; add to the flat gradient and the loss terms.

        Both are zero before the first microbatch of each minibatch. A class that is never given several microbatches may
        overwrite them instead, as `NumpyCompute` does.
        """
