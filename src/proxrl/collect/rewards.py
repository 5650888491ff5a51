"""Rewards as the learner sees them: scaled, divided by the standard deviation of the running return, and clipped."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from proxrl.policy.statistics import EPSILON, RunningMoments
from proxrl.types import Rollout
from proxrl.world.api import World


class RewardScaler(nn.Module):
    """Multiplies rewards by a factor, divides them by the deviation of the running discounted return, then clips them
    (continuous details 8 and 9).

    The mean is never subtracted: that would change which episodes are worth ending. The statistics take in a rollout before they
    scale it: nothing acts on them, so there is nothing to keep frozen, and the first rollout is scaled too.
    """

    def __init__(self, num_envs: int, normalize: bool, clip: float | None, factor: float = 1.0) -> None:
        super().__init__()
        self.normalize, self.factor = normalize, np.float32(factor)
        self.clip = float("inf") if clip is None else clip
        self.moments = RunningMoments(())
        self.running_return = np.zeros(num_envs)

    def scale(self, rollout: Rollout, gamma: float, world: World) -> NDArray[np.float32]:
        """Rewards [T, N] as the learner sees them."""
        reward: NDArray[np.float32] = np.asarray(rollout.reward, np.float32) * self.factor  # a callback may leave doubles
        if self.normalize:
            self.moments.merge(self._returns(reward, rollout, gamma)[rollout.valid], world)
            reward = reward / np.float32(np.sqrt(float(self.moments.variance) + EPSILON))
        return np.clip(reward, -self.clip, self.clip)

    def _returns(self, rewards: NDArray[np.float32], rollout: Rollout, gamma: float) -> NDArray[np.float64]:
        """The discounted return up to each step; it begins anew after either kind of ending, and where a rollout does."""
        returns = np.empty(rewards.shape)
        going_on = gamma * ~(rollout.terminated | rollout.truncated)
        running = self.running_return * ~rollout.starts[0]
        for t, reward in enumerate(rewards):
            running = running + reward * rollout.valid[t]  # a pool may leave any number in a dummy step
            returns[t] = running
            running = running * going_on[t]
        self.running_return = running
        return returns
