"""Running statistics of observations and returns.

They are frozen while a rollout is collected and learned from, then merged once, over all ranks: so the policy that learns is
the policy that acted, to the last bit of its inputs. Dummy steps never enter.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
