"""Running statistics, and rewards scaled by them.

They are frozen while a rollout is collected and learnt from, then merged once, over all ranks: so the policy that learns is
the policy that acted, to the last bit of its inputs. Dummy steps never enter.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.types import Rollout
from proxrl.world.api import World

EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Count, mean and variance of everything seen. Buffers, so they travel with the weights they belong to."""

    count: Tensor
    mean: Tensor
    residual: Tensor  # what single precision cuts off the mean; not every device has double
    variance: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("residual", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def merge(self, rows: NDArray[np.floating], world: World) -> None:
        """Take in rows [B, ...] of every rank.

        Sums are taken around the old mean, which all ranks share: so adding them over ranks is exact, between-rank offsets
        included, and large means lose no digits.
        """
        old_count = int(self.count)
        old_mean = self.mean.cpu().double().numpy() + self.residual.cpu().double().numpy()
        old_variance = self.variance.cpu().double().numpy()
        offset = rows.astype(np.float64) - old_mean
        sums = torch.from_numpy(np.concatenate([[float(len(rows))], offset.sum(0).ravel(), (offset * offset).sum(0).ravel()]))
        world.sum_(sums)
        added, (first, second) = sums[0].item(), sums[1:].numpy().reshape(2, *old_mean.shape)
        count = old_count + added
        if count == 0:
            return
        shift = first / count
        variance = (old_variance * old_count + second) / count - shift * shift
        self.count.fill_(int(count))
        mean = torch.as_tensor(old_mean + shift)
        self.mean.copy_(mean)
        self.residual.copy_(mean - mean.float().double())
        self.variance.copy_(torch.as_tensor(np.maximum(variance, 0)))


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
