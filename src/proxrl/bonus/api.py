"""What learns beside the policy: curiosity, or a user's own loss term. A run may have any number of learners, usually none.

A learner's parameters lie in the same flat buffer as the policy's, so that clipping, averaging over ranks and checkpoints treat
them alike. Its buffers are saved with them. The algorithm calls learners by the functions of calling.py, which check what they
return. docs/changing_the_algorithm.md explains how to write one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.config import Coefficients, Config
from proxrl.policy.policy import Policy
from proxrl.types import Batch, Rollout
from proxrl.world.api import World


@dataclass(frozen=True)
class Stream:
    """How the rewards of one value stream are discounted, and how much its advantage counts."""

    gamma: float
    gae_lambda: float
    coef: float = 1.0
    episodic: bool = True  # if not, what follows the end of an episode is the next episode


@dataclass(frozen=True)
class LearnerSetup:
    """What a learner may need to know when it is built."""

    config: Config
    observation_space: gymnasium.Space  # as the environment gives it; `Masked` if there are action masks
    action_space: gymnasium.Space
    policy: Policy
    world: World
    num_envs: int  # of this rank
    first_env: int  # number of this rank's first environment among those of all ranks
    frame_stack: int = 1  # frames in each image, the newest last

    @property
    def feature_size(self) -> int:
        """The width of the policy's features, which `Learner.loss` may use."""
        return self.policy.memory.output_size


class Learner(nn.Module):
    """Override `reward` for a bonus, `loss` for a term of the loss, or both.

    A learner is built by calling its class with a `LearnerSetup` and the keyword arguments of the setting that names it.
    """

    terms: tuple[str, ...] = ()  # names of what `loss` returns; they are logged as losses/<name>
    column = 0  # the value stream that rewards are added to; 0 is the environment's. Set by registry.py.
    label = "learner"  # the setting that names it, for messages. Set by registry.py.
    # Whether `loss` uses the policy's features or the observations of the batch, for which the policy must run by autograd.
    sees_features = False
    sees_final_obs = False  # whether `reward` needs the last observation of every episode, not only of truncated ones

    def stream(self, now: Coefficients) -> Stream | None:
        """Return how rewards are discounted if they have a value stream of their own, otherwise None, at every step of a run."""
        return None

    def reward(self, rollout: Rollout, now: Coefficients) -> NDArray[np.float32] | float:
        """Return rewards [T, N] of this rank's rollout. Called once per iteration, on all ranks, before the update."""
        return 0.0

    def loss(self, batch: Batch, features: Tensor | None) -> Mapping[str, Tensor]:
        """Return the terms of the loss of a minibatch, which are added to the loss of PPO; autograd differentiates them.

        Each is a number: a sum over rows with the weights of the batch, which sum to 1 over all ranks. `batch.mean` computes it.
        If `sees_features`, `features` are the policy's [B, F], after encoder and memory. Otherwise both they and `batch.obs` are
        None. All columns of the batch are tensors. What else is needed of the rollout, `reward` can keep: `batch.rows` are the
        positions of the rows in its arrays [T, N], flattened.
        """
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what to log after an iteration; the same on all ranks."""
        return {}


def state_tensors(learners: tuple[Learner, ...]) -> dict[str, torch.Tensor]:
    """Return what is saved of the learners, by name; loading a checkpoint copies into these tensors."""
    return {
        f"learner.{index}.{name}": tensor
        for index, learner in enumerate(learners)
        for name, tensor in learner.state_dict().items()
    }
