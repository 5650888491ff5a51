"""How a policy's arithmetic is done: acting step by step, evaluating a rollout, and gradients for the update.

Two classes implement this contract and agree to float precision (tests/engine/test_compute.py): `TorchCompute` (autograd.py)
runs any policy by autograd; `NumpyCompute` (numpy_mlp.py, with memory numpy_recurrent.py) runs small MLPs on a CPU several
times faster, because nearly all of the time of such a network is overhead.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxrl.engine.shards import Shards
from proxrl.types import ActingOutputs, Array, Batch, Rollout, State, Tree


class Evaluation(NamedTuple):
    """A rollout as the policy that acted sees it. Rows are in order of time, then environment: row t * N + n."""

    obs: Tree  # [T * N, ...] preprocessed
    action: Array  # [T * N, ...]
    log_prob: Array  # [T, N]
    value: Array  # [T + 1, N, H] of the observation; the last row is where the next rollout begins
    next_value: Array  # [T, N, H] of its true successor


class Outputs(NamedTuple):
    """What the loss is computed from, or the gradient of the loss with respect to each."""

    log_prob: Array  # [B]
    entropy: Array  # [B]
    value: Array  # [B, H]

    def only(self, policy: bool, value: bool) -> "Outputs":
        """Return a gradient that is zero for what does not learn."""
        return self if policy and value else Outputs(self.log_prob * policy, self.entropy * policy, self.value * value)


class Compute(Protocol):
    """`library` is the module whose functions take this compute's arrays: numpy or torch. `features` are those of the policy in
    the last `forward`, for learners; None if autograd does not know them.
    """

    library: ClassVar[Any]
    features: Tensor | None
    shards: Shards  # the threads that share a minibatch

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

        If acting computes values too (see `Policy.acts_with_value`), all that `evaluate` needs is appended to `outputs`.
        """

    def evaluate(self, rollout: Rollout) -> Evaluation: ...

    def array(self, values: NDArray[Any]) -> Array:
        """Convert a numpy array to an array of this compute's library, on its device."""

    def forward(self, batch: Batch) -> Outputs: ...

    def backward(self, gradient: Outputs, terms: Sequence[Array], losses: Sequence[Tensor]) -> None:
        """Backpropagate `gradient` from the last `forward`, and the losses of learners; add to the flat gradient and to the terms
        of the loss, of which those of the learners are last.

        Both are zero before the first microbatch of each minibatch. A class that is never given several microbatches may
        overwrite them instead, as `NumpyCompute` does.
        """
