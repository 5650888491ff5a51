"""The data that passes between the stages, every field with its shape.

T = rollout steps, N = environments of this rank, B = rows of a minibatch, K = episodes that ended in the step or rollout.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A numpy array or a torch tensor: the advantage and the loss are written once for both.
Array: TypeAlias = Any
# An array, or nested dicts and tuples of arrays (see tree.py).
Tree: TypeAlias = Any


class Episode(NamedTuple):
    """One finished episode, as the environment scored it: before any clipping or scaling of rewards."""

    env: int  # index of the environment within its pool
    total_reward: float
    length: int
    step: int = 0  # of the rollout, in which it ended


class Step(NamedTuple):
    """What N environments answer to N actions.

    The arrays belong to the pool and may be overwritten by its next step: copy what must last.
    """

    obs: Tree  # [N, ...] what to act on next
    reward: NDArray[np.float32]  # [N] as the environment gave it
    terminated: NDArray[np.bool_]  # [N] the task ended; never set together with truncated
    truncated: NDArray[np.bool_]  # [N] the clock ran out
    valid: NDArray[np.bool_]  # [N] False on the dummy step that next-step autoreset puts between episodes
    final_obs: Tree | None  # [K, ...] same-step autoreset: true last observations, in the order of the ended environments
    episodes: list[Episode]  # finished in this step


@dataclass
class Rollout:
    """T steps of N environments. Trees of observations hold T + 1 rows: the last one is where the next rollout begins."""

    obs: Tree  # [T + 1, N, ...]
    starts: NDArray[np.bool_]  # [T + 1, N] the observation begins an episode
    action: Array  # [T, N, ...] as sampled, before clipping to the environment's bounds
    reward: NDArray[np.float32]  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N]
    truncated: NDArray[np.bool_]  # [T, N]
    valid: NDArray[np.bool_]  # [T, N]
    final_index: tuple[NDArray[np.int64], NDArray[np.int64]]  # [K], [K] (t, n) where final_obs replaces obs[t + 1, n]
    final_obs: Tree | None  # [K, ...]
    episodes: list[Episode]

    @property
    def steps(self) -> int:
        """Agent steps: dummy steps are not steps."""
        return int(self.valid.sum())


class Terms(NamedTuple):
    """The parts of the loss, and the debug variables that tell whether an update went well (core detail 12)."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    old_approx_kl: Array
    approx_kl: Array
    clipfrac: Array


@dataclass
class Batch:
    """Rows for the update: a whole rollout flattened, or a minibatch of it."""

    obs: Tree  # [B, ...] as the network takes it: normalised once, since statistics are frozen until the update ends
    action: Array  # [B, ...]
    log_prob: Array  # [B] of the policy that acted
    value: Array  # [B] at the time of the rollout
    advantage: Array  # [B]
    target: Array  # [B] what the value function should predict
    weight: Array  # [B] 0 for rows that must not count; sums to 1 over a minibatch
