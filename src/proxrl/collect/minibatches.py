"""One batch, several epochs, each a new partition into minibatches.

The partition does not depend on how environments are spread over ranks: each environment shuffles its own steps on its own
stream, and every minibatch takes an equal share of each environment. So 1 rank with 8 environments and 2 ranks with 4 train
alike.
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
from proxrl.types import Array, Batch
from proxrl.world.api import World


class Layout(NamedTuple):
    """Which share of every environment's shuffled steps each minibatch takes; the same in every epoch."""

    order: NDArray[np.int64]  # [N * T] places in the shuffled steps [N, T], minibatch after minibatch
    owner: NDArray[np.int64]  # [N * T] the minibatch that each belongs to
    sizes: list[int]  # rows of each minibatch


@functools.cache
def layout(num_envs: int, steps: int, num_minibatches: int, first_env: int) -> Layout:
    """Where T does not divide evenly, environment n hands its spare steps to minibatches in turn, from where environment n
    - 1 stopped: over all environments the minibatches come out equal.
    """
    env, spare = np.arange(num_envs)[:, None], steps % num_minibatches
    equal = np.tile(np.repeat(np.arange(num_minibatches), steps // num_minibatches), (num_envs, 1))
    extra = ((first_env + env) * spare + np.arange(spare)) % num_minibatches
    owner = np.concatenate([equal, extra], axis=1).ravel()
    order = np.argsort(owner, kind="stable")
    return Layout(order, owner[order], np.bincount(owner, minlength=num_minibatches).tolist())


def shuffle(streams: Sequence[np.random.Generator], steps: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row numbers t * N + n in the order of one epoch."""
    rows = np.stack([stream.permutation(steps) for stream in streams])
    rows *= len(streams)
    rows += np.arange(len(streams))[:, None]
    return rows.ravel()[order]


def minibatches(
    batch: Batch,
    streams: Sequence[np.random.Generator],
    epochs: int,
    config: Config,
    compute: Compute,
    world: World,
    first_env: int,
) -> Iterator[Batch]:
    """The minibatches of all epochs, with normalised advantages and with weights that sum to 1 over the ranks' shares of each."""
    batch = _prepare_advantages(batch, config.advantage_norm, compute, world)
    parts = _parts(batch, config, world)
    order, owner, sizes = layout(len(streams), config.rollout_steps, parts, first_env)
    owner, short = compute.array(owner), parts < config.num_minibatches
    for _ in range(epochs):
        rows = compute.array(shuffle(streams, config.rollout_steps, order))
        yield from _epoch(batch, rows, owner, sizes, config.advantage_norm, short, compute, world)


def pieces(minibatch: Batch, count: int) -> Iterator[Batch]:
    """Its rows in consecutive pieces. Weights are those of the whole, so losses and gradients of the pieces add up to its own."""
    if count == 1:
        yield minibatch
        return
    rows = len(minibatch.weight)
    for part in (slice(rows * k // count, rows * (k + 1) // count) for k in range(count)):
        if part.stop > part.start:
            yield Batch(**{name: tree_map(lambda leaf, part=part: leaf[part], tree) for name, tree in vars(minibatch).items()})


def _parts(batch: Batch, config: Config, world: World) -> int:
    """As many minibatches as the valid rows fill.

    The last rollout of a budget may be short, and the full number of Adam steps on a few rows each would overfit them.
    """
    valid = torch.tensor(float(batch.weight.sum()))
    world.sum_(valid)
    return min(config.num_minibatches, max(1, math.ceil(valid.item() / config.minibatch_size)))


def _epoch(
    batch: Batch, rows: Array, owner: Array, sizes: Sequence[int], normalize: str, short: bool, compute: Compute, world: World
) -> Iterator[Batch]:
    advantage, weight = batch.advantage[rows], batch.weight[rows]
    count, mean, deviation = moments(advantage, weight, owner, len(sizes), compute, world)
    if normalize == "minibatch":
        advantage = (advantage - mean[owner]) / deviation[owner]
    weight = weight / compute.library.clip(count, 1, None)[owner]
    action, log_prob, value, target = (field[rows] for field in (batch.action, batch.log_prob, batch.value, batch.target))
    end = 0
    for size, valid in zip(sizes, count.tolist(), strict=True):
        start, end = end, end + size
        if valid == 0:
            continue  # on all ranks alike; a step without a gradient would still move by Adam's momentum
        part: Any = slice(start, end)
        if short:
            # Most rows of a short rollout do not count, and its few minibatches would hold many times the rows of others.
            part = start + compute.library.where(weight[part] > 0)[0]
        # Only observations are gathered late: an epoch's copy of a rollout of images would double its memory.
        obs = tree_map(lambda leaf, part=part: leaf[rows[part]], batch.obs)
        yield Batch(obs, action[part], log_prob[part], value[part], advantage[part], target[part], weight[part])


def _prepare_advantages(batch: Batch, normalize: str, compute: Compute, world: World) -> Batch:
    """What is done to advantages once for all epochs.

    Centring them on the mean of all ranks changes nothing for minibatches that will be normalised, but keeps the digits
    that a large mean would cost there.
    """
    if normalize == "off":
        return batch
    whole = compute.array(np.zeros(len(batch.weight), np.int64))
    centred = batch.advantage - moments(batch.advantage, batch.weight, whole, 1, compute, world)[1]
    if normalize == "batch":
        centred = centred / moments(centred, batch.weight, whole, 1, compute, world)[2]
    return dataclasses.replace(batch, advantage=centred)


def moments(
    values: Array, weight: Array, owner: Array, groups: int, compute: Compute, world: World
) -> tuple[Array, Array, Array]:
    """Count, mean and deviation of each group, over all ranks in one message.

    The floors keep a group with no valid row, or with one, at zero instead of NaN.
    """
    library = compute.library
    weighted = weight * values
    sums = library.stack([library.bincount(owner, x, groups) for x in (weight, weighted, weighted * values)])
    world.sum_(torch.as_tensor(sums))
    count = sums[0]
    mean = sums[1] / library.clip(count, 1, None)
    variance = library.clip(sums[2] - mean * sums[1], 0, None) / library.clip(count - 1, 1, None)
    count, mean, deviation = (library.asarray(x, dtype=values.dtype) for x in (count, mean, variance**0.5 + 1e-8))
    return count, mean, deviation
