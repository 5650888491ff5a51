"""Running statistics of observations and returns.

Those of observations are frozen during a rollout and its update, then updated once, over all ranks. So the update sees exactly
the inputs that acting saw. Those of returns include a rollout before they scale its rewards (collect/rewards.py): no policy acts
on them. Dummy steps are left out.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.world.api import World

EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Count, mean and variance of all rows so far. They are buffers, so they are saved and moved with the weights."""

    count: Tensor
    mean: Tensor
    residual: Tensor  # rounding error of `mean`, because not every device has double precision
    variance: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("residual", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.frozen = False  # by --freeze

    def merge(self, rows: NDArray[np.floating], world: World) -> None:
        """Add the rows [B, ...] of every rank."""
        self.merge_chunks([rows], world)

    def merge_chunks(self, chunks: Iterable[NDArray[np.generic]], world: World) -> None:
        """Add the rows of every rank, which come in chunks [B, ...] of any sizes to save memory.

        Sums are relative to the old mean, which is the same on all ranks. So they can be added over ranks, differences between
        the ranks' means are accounted for, and large means cause no loss of precision.
        """
        if self.frozen:
            return
        old_count = int(self.count)
        old_mean = self.mean.cpu().double().numpy() + self.residual.cpu().double().numpy()
        old_variance = self.variance.cpu().double().numpy()
        rows_added, first, second = 0, np.zeros_like(old_mean), np.zeros_like(old_mean)
        for rows in chunks:
            offset = rows.astype(np.float64) - old_mean
            rows_added += len(rows)
            first = first + offset.sum(0)
            second = second + (offset * offset).sum(0)
        sums = torch.from_numpy(np.concatenate([[float(rows_added)], first.ravel(), second.ravel()]))
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
