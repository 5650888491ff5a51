"""Rewards as the learner sees them: scaled, divided by the standard deviation of the running return, and clipped."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from proxrl.errors import ProxRLError
from proxrl.policy.statistics import EPSILON, RunningMoments
from proxrl.types import Rollout
from proxrl.world.api import World


class RewardScaler(nn.Module):
    """Multiplies rewards by a factor, divides them by the standard deviation of the running discounted return, then clips them
    (continuous details 8 and 9).

    The mean is never subtracted: subtracting it could make ending an episode early look better or worse. The statistics include a
    rollout before they scale it: no policy acts on them, so they need not be frozen, and the first rollout is scaled too.
    """

    def __init__(self, num_envs: int, normalize: bool, clip: float | None, factor: float = 1.0) -> None:
        super().__init__()
        self.normalize, self.factor = normalize, np.float32(factor)
        self.clip = float("inf") if clip is None else clip
        self.moments = RunningMoments(())
        self.running_return = np.zeros(num_envs)

    def scale(self, rollout: Rollout, gamma: float, world: World) -> NDArray[np.float32]:
        """Return rewards [T, N] to learn from."""
        _check_rewards(rollout)
        # As float32, because a callback may have made them float64.
        reward: NDArray[np.float32] = np.asarray(rollout.reward, np.float32) * self.factor
        if self.normalize:
            self.moments.merge(self._returns(reward, rollout, gamma)[rollout.valid], world)
            reward = reward / np.float32(np.sqrt(float(self.moments.variance) + EPSILON))
        return np.clip(reward, -self.clip, self.clip)

    def _returns(self, rewards: NDArray[np.float32], rollout: Rollout, gamma: float) -> NDArray[np.float64]:
        """Return the discounted return up to each step. It restarts after both kinds of ending, and if the rollout began with a
        reset.
        """
        returns = np.empty(rewards.shape)
        discount = gamma * ~(rollout.terminated | rollout.truncated)
        running = self.running_return * ~rollout.starts[0]
        for t, reward in enumerate(rewards):
            running = running + reward * rollout.valid[t]  # a pool may leave any number in a dummy step
            returns[t] = running
            running = running * discount[t]
        self.running_return = running
        return returns


def _check_rewards(rollout: Rollout) -> None:
    """Refuse rewards that a callback has spoiled: those of the environments were checked when they were collected."""
    shape, expected = np.shape(rollout.reward), rollout.valid.shape
    if shape != expected:
        raise ProxRLError(f"a callback left rewards of shape {shape}, but must leave {expected}; this rollout was discarded")
    if not np.isfinite(rollout.reward).all():
        raise ProxRLError("a callback left rewards that are not finite numbers; this rollout was discarded")
