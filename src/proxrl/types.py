"""The data passed between the stages of an iteration, every field with its shape.

T = rollout steps, N = environments of this rank, B = rows of a minibatch, K = environments that ended in the rollout, H = value
streams (1 unless a bonus has its own), L = steps of a sequence (1 without memory), C = sequences.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A numpy array or a torch tensor: the advantage and the loss are written once for both.
Array: TypeAlias = Any
# An array, or nested dicts and tuples of arrays (see common/tree.py).
Tree: TypeAlias = Any
# The memory of a policy: tensors whose first axis is the environment or the sequence. Empty for feed-forward policies.
State: TypeAlias = tuple[Array, ...]
# What `Compute.act` has computed in each step and `Compute.evaluate` needs: log-probabilities [N], or the head's inputs; and
# values [N, H].
ActingOutputs: TypeAlias = list[tuple[Array, Array]]


class Episode(NamedTuple):
    """One finished episode, as the environment scored it: before any clipping or scaling of rewards."""

    env: int  # index of the environment: within its pool, and after `Collector.progress` among those of all ranks
    total_reward: float
    length: int
    step: int = 0  # the rollout step at which it ended
    success: bool | None = None  # `is_success` or `success` in the info of its last step; None if it has neither


class Step(NamedTuple):
    """The result of one action in each of N environments.

    The arrays belong to the pool and may be overwritten by its next step: copy what must last.
    """

    obs: Tree  # [N, ...] the observations to act on next
    reward: NDArray[np.float32]  # [N] as the environment gave it
    terminated: NDArray[np.bool_]  # [N] the task ended; never set together with truncated
    truncated: NDArray[np.bool_]  # [N] the time limit was reached
    valid: NDArray[np.bool_]  # [N] False on the dummy step that next-step autoreset puts between episodes
    final_obs: Tree | None  # same-step autoreset: the true last observations, in the order of the ended environments
    episodes: list[Episode]  # finished in this step
    info: NDArray[np.float64] | None = None  # [N, K] the numbers that --log-info names, NaN where absent; None without any


@dataclass
class Rollout:
    """T steps of N environments. Observations have T + 1 rows: the last one is where the next rollout begins."""

    # Arrays [T + 1, N, ...]. Stacks of frames are a read-only `FrameBuffer` (engine/frames.py), which stores each frame once:
    # it is indexed like an array, and np.asarray() converts it to an array.
    obs: Tree
    starts: NDArray[np.bool_]  # [T + 1, N] the observation begins an episode
    action: Array  # [T, N, ...] as sampled, before clipping to the environment's bounds
    reward: NDArray[np.float32]  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N]
    truncated: NDArray[np.bool_]  # [T, N]
    valid: NDArray[np.bool_]  # [T, N] False for dummy steps and for steps past the step budget
    # [T, N] True in the last row, and in the row before a step past the step budget: nothing after it counts.
    last: NDArray[np.bool_]
    final_index: tuple[NDArray[np.int64], NDArray[np.int64]]  # [K], [K] (t, n) where final_obs replaces obs[t + 1, n]
    final_obs: Tree | None  # [K, ...]
    final_state: State  # [K, ...] the memory with which the policy would have acted on final_obs
    # The memory before the first step of each sequence and, in the last row, after the last step: [ceil(T / L) + 1, N, ...].
    states: State
    episodes: list[Episode]
    outputs: ActingOutputs  # of each step if acting computes values too (see `Policy.acts_with_value`), otherwise empty

    @property
    def steps(self) -> int:
        """The number of steps that count."""
        return int(self.valid.sum())


class Progress(NamedTuple):
    """What one rank did in one iteration, for the counters of the run."""

    steps: int
    episodes: list[Episode]  # finished; environments are numbered over all ranks
    episode_counts: list[int]  # [N] episodes begun so far by each environment of this rank
    info: NDArray[np.float64]  # [K, 4] of the numbers that --log-info names, see `InfoRecorder.sums`


class Terms(NamedTuple):
    """The terms of the loss, and the diagnostics that tell whether an update went well (core detail 12)."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    old_approx_kl: Array
    approx_kl: Array
    clipfrac: Array


@dataclass
class Batch:
    """Rows for the update: a whole rollout flattened, in the order of time and then of environments, or a minibatch of it.

    With memory, the rows of a minibatch are sequences of L steps of one environment, one sequence after another.
    """

    obs: Tree  # [B, ...] preprocessed, once per rollout, since statistics are frozen until the update ends
    action: Array  # [B, ...]
    log_prob: Array  # [B] of the policy that acted
    value: Array  # [B, H] at the time of the rollout
    advantage: Array  # [B]
    target: Array  # [B, H] what the value function should predict
    weight: Array  # [B] 0 for rows that do not count; over a minibatch of all ranks, weights sum to 1
    rows: Array  # [B] numbers t * N + n of these rows in the rollout
    starts: Array  # [B] the observation begins an episode
    state: State  # [C, ...] the memory before the first step of each sequence, C = B / L
    # [B, inputs] added to the inputs of the policy's head, in the update alone (see collect/perturbation.py); usually empty.
    perturbation: tuple[Array, ...] = ()

    def mean(self, column: Array) -> Array:
        """Return the mean of a column [B, ...] over the rows that count; over several ranks, this rank's contribution to it."""
        return self.weight @ column

    @property
    def sequences(self) -> int:
        """The number of sequences in a minibatch; rows of a feed-forward policy are sequences of one step."""
        return len(self.state[0]) if self.state else len(self.weight)
