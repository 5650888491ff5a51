"""Minibatches of one batch, shuffled anew in every epoch.

The partition does not depend on how environments are spread over ranks: each environment shuffles its own steps on its own
stream, and every minibatch takes an equal share of each environment. So 1 rank with 8 environments and 2 ranks with 4 each
train alike.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.engine.api import Compute
from proxrl.log.activity import Activity
from proxrl.types import Array, Batch
from proxrl.world.api import World


class Layout(NamedTuple):
    """Which share of every environment's shuffled steps each minibatch takes; the same in every epoch."""

    order: NDArray[np.int64]  # [N * T] positions in the shuffled steps [N, T], minibatch after minibatch
    owner: NDArray[np.int64]  # [N * T] the minibatch that each belongs to
    sizes: list[int]  # rows of each minibatch


@functools.cache
def layout(num_envs: int, steps: int, num_minibatches: int, first_env: int) -> Layout:
    """Assign steps to minibatches. If T does not divide evenly, environment n gives its spare steps to minibatches in turn,
    starting where environment n - 1 stopped: over all environments the minibatches are equal.
    """
    env, spare = np.arange(num_envs)[:, None], steps % num_minibatches
    equal = np.tile(np.repeat(np.arange(num_minibatches), steps // num_minibatches), (num_envs, 1))
    extra = ((first_env + env) * spare + np.arange(spare)) % num_minibatches
    owner = np.concatenate([equal, extra], axis=1).ravel()
    order = np.argsort(owner, kind="stable")
    return Layout(order, owner[order], np.bincount(owner, minlength=num_minibatches).tolist())


def shuffle(streams: Sequence[np.random.Generator], steps: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return row numbers t * N + n in the order of one epoch."""
    rows = np.stack([stream.permutation(steps) for stream in streams])
    rows *= len(streams)
    rows += np.arange(len(streams))[:, None]
    return rows.ravel()[order]


class Minibatches:
    """Draws minibatches from a batch, of which this rank holds the rows of its own environments."""

    def __init__(self, config: Config, compute: Compute, world: World, first_env: int, activity: Activity | None = None) -> None:
        self.config, self.compute, self.world, self.first_env = config, compute, world, first_env
        self.activity = activity or Activity()

    def draw(self, batch: Batch, streams: Sequence[np.random.Generator], epochs: int) -> Iterator[Batch]:
        """Yield the minibatches of all epochs: every row once per epoch (core detail 6), with advantages normalized within each
        minibatch (core detail 7), and with weights that sum to 1 over all ranks.
        """
        batch = self._center_advantages(batch)
        count = self._count(batch)
        steps = len(batch.weight) // len(streams)
        order, owner, sizes = layout(len(streams), steps, count, self.first_env)
        owner = self.compute.array(owner)
        self.activity.begin("learning", epochs)
        for epoch in range(epochs):
            self.activity.done = epoch + 1
            rows = self.compute.array(shuffle(streams, steps, order))
            yield from self._epoch(batch, rows, owner, sizes)

    def _epoch(self, batch: Batch, rows: Array, owner: Array, sizes: Sequence[int]) -> Iterator[Batch]:
        library = self.compute.library
        advantage, weight = batch.advantage[rows], batch.weight[rows]
        count, mean, std = moments(advantage, weight, owner, len(sizes), self.compute, self.world)
        if self.config.advantage_norm == "minibatch":
            advantage = (advantage - mean[owner]) / std[owner]
        weight = weight / library.clip(count, 1, None)[owner]
        action, log_prob, value, target = (field[rows] for field in (batch.action, batch.log_prob, batch.value, batch.target))
        short = len(sizes) < self.config.num_minibatches
        end = 0
        for size, valid in zip(sizes, count.tolist(), strict=True):
            start, end = end, end + size
            if valid == 0:
                continue  # on all ranks alike; a step without a gradient would still move by Adam's momentum
            part: Any = slice(start, end)
            if short:
                # Drop invalid rows: otherwise these few minibatches could be too large for memory.
                part = start + library.where(weight[part] > 0)[0]
            # Only observations are gathered per minibatch: an epoch's copy of a rollout of images would double its memory.
            obs = tree_map(lambda leaf, part=part: leaf[rows[part]], batch.obs)
            yield Batch(obs, action[part], log_prob[part], value[part], advantage[part], target[part], weight[part])

    def _count(self, batch: Batch) -> int:
        """Return the number of minibatches, fewer if few rows are valid. The last rollout of a run may be short, and the full
        number of optimizer steps on a few rows each would overfit them.
        """
        valid = torch.tensor(float(batch.weight.sum()))
        self.world.sum_(valid)
        return min(self.config.num_minibatches, max(1, math.ceil(valid.item() / self.config.minibatch_size)))

    def _center_advantages(self, batch: Batch) -> Batch:
        """Subtract the mean over the whole batch and, with `advantage_norm="batch"`, divide by its standard deviation.

        If advantages are normalized per minibatch, centering first only improves precision: a large mean would cost digits.
        """
        if self.config.advantage_norm == "off":
            return batch
        whole = self.compute.array(np.zeros(len(batch.weight), np.int64))
        centered = batch.advantage - moments(batch.advantage, batch.weight, whole, 1, self.compute, self.world).mean
        if self.config.advantage_norm == "batch":
            centered = centered / moments(centered, batch.weight, whole, 1, self.compute, self.world).std
        return dataclasses.replace(batch, advantage=centered)


class Moments(NamedTuple):
    """Statistics of the valid rows of each group, over all ranks."""

    count: Array  # [groups]
    mean: Array  # [groups]
    std: Array  # [groups] the standard deviation plus 1e-8, to divide by


def moments(values: Array, weight: Array, owner: Array, groups: int, compute: Compute, world: World) -> Moments:
    """Return the count, the mean, and the standard deviation plus 1e-8 of each group, over all ranks in one message.

    The lower bounds give groups of no or one valid row a standard deviation of 0, so `std` is 1e-8 instead of NaN.
    """
    library = compute.library
    weighted = weight * values
    sums = library.stack([library.bincount(owner, x, groups) for x in (weight, weighted, weighted * values)])
    world.sum_(torch.as_tensor(sums))  # the tensor shares the memory of `sums`, which now holds the sums over all ranks
    count = sums[0]
    mean = sums[1] / library.clip(count, 1, None)
    variance = library.clip(sums[2] - mean * sums[1], 0, None) / library.clip(count - 1, 1, None)
    return Moments(*(library.asarray(x, dtype=values.dtype) for x in (count, mean, variance**0.5 + 1e-8)))
