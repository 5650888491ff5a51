"""Minibatches of one batch, shuffled anew in every epoch.

What is shuffled is sequences of L steps of one environment: single steps unless the policy has a memory. The partition does not
depend on how environments are spread over ranks: each environment shuffles its own sequences on its own stream, and every
minibatch takes an equal share of each environment. So 1 rank with 8 environments and 2 ranks with 4 each train alike.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from proxrl.collect.perturbation import Perturbation
from proxrl.common.seeding import Purpose, generator, rollout_address
from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.engine.api import Compute
from proxrl.log.activity import Activity
from proxrl.types import Array, Batch
from proxrl.world.api import World


class Layout(NamedTuple):
    """Which share of every environment's shuffled sequences each minibatch takes."""

    order: NDArray[np.int64]  # [N * S] positions in the shuffled sequences [N, S], minibatch after minibatch
    owner: NDArray[np.int64]  # [N * S] the minibatch that each belongs to
    sizes: list[int]  # sequences of each minibatch


@functools.lru_cache(maxsize=16)
def layout(num_envs: int, sequences: int, num_minibatches: int, first_env: int, turns: tuple[int, ...] | None = None) -> Layout:
    """Assign the sequences of each environment to minibatches. If their number does not divide evenly, environment n gives its
    spare ones to minibatches in turn, starting where environment n - 1 stopped: over all environments the minibatches are equal.

    With one sequence per environment, this alone decides which ones meet in a minibatch. So with `turns`, the seed, iteration and
    epoch, every round of turns is in another order, which is the same on all ranks.
    """
    env, spare = np.arange(num_envs)[:, None], sequences % num_minibatches
    equal = np.tile(np.repeat(np.arange(num_minibatches), sequences // num_minibatches), (num_envs, 1))
    rounds, extra = np.divmod((first_env + env) * spare + np.arange(spare), num_minibatches)
    if turns is not None and spare:
        seed, *address = turns
        draws = generator(seed, Purpose.TURNS, *address).random((rounds.max() + 1, num_minibatches))
        extra = draws.argsort(1)[rounds, extra]
    owner = np.concatenate([equal, extra], axis=1).ravel()
    order = np.argsort(owner, kind="stable")
    return Layout(order, owner[order], np.bincount(owner, minlength=num_minibatches).tolist())


def shuffle(streams: Sequence[np.random.Generator], sequences: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sequence numbers k * N + n in the order of one epoch; k counts the sequences of environment n."""
    numbers = np.stack([stream.permutation(sequences) for stream in streams])
    numbers *= len(streams)
    numbers += np.arange(len(streams))[:, None]
    return numbers.ravel()[order]


class Drawn:
    """The rows of one epoch: sequence after sequence, minibatch after minibatch."""

    def __init__(
        self,
        sequences: NDArray[np.int64],  # [S] numbers k * N + n, see `shuffle`
        owner: NDArray[np.int64],  # [S] the minibatch of each
        sizes: Sequence[int],  # sequences of each minibatch
        length: int,  # steps of a sequence
        num_envs: int,
        steps: int,  # of the rollout
    ) -> None:
        self.sequences, self.sizes, self.length = sequences, sizes, length
        self.rows, self.row_owner = sequences, owner
        self.padding: NDArray[np.float32] | None = None  # [S * L] 0 for rows past the end of the rollout, which repeat its last
        if length > 1:
            number, env = np.divmod(sequences, num_envs)
            time = number[:, None] * length + np.arange(length)
            if steps % length:
                self.padding = (time < steps).astype(np.float32).ravel()
            self.rows = (np.minimum(time, steps - 1) * num_envs + env[:, None]).ravel()
            self.row_owner = np.repeat(owner, length)


class Minibatches:
    """Draws minibatches from a batch, of which this rank holds the rows of its own environments."""

    def __init__(
        self,
        config: Config,
        compute: Compute,
        world: World,
        first_env: int,
        activity: Activity | None = None,
        perturbation: Perturbation | None = None,
    ) -> None:
        self.config, self.compute, self.world, self.first_env = config, compute, world, first_env
        self.perturbation = perturbation or Perturbation()
        self.activity = activity or Activity()

    def draw(self, batch: Batch, streams: Sequence[np.random.Generator], epochs: int) -> Iterator[Batch]:
        """Yield the minibatches of all epochs: every row once per epoch (core detail 6), with advantages normalized within each
        minibatch (core detail 7), and with weights that sum to 1 over all ranks.
        """
        batch = self._center_advantages(batch)
        count, num_envs = self._count(batch), len(streams)
        steps = len(batch.weight) // num_envs
        length = min(self.config.steps_per_sequence, steps)  # the last rollout of a run may be short
        sequences = math.ceil(steps / length)
        self.activity.begin("learning", epochs)
        for epoch in range(epochs):
            self.activity.done = epoch + 1
            # Single steps are shuffled enough within their environment.
            turns = (*rollout_address(streams[0]), epoch) if length > 1 else None
            order, owner, sizes = layout(num_envs, sequences, count, self.first_env, turns)
            chosen = shuffle(streams, sequences, order)
            moved = dataclasses.replace(batch, perturbation=self.perturbation.draw(streams, steps))
            yield from self._epoch(moved, Drawn(chosen, owner, sizes, length, num_envs, steps))

    def _epoch(self, batch: Batch, drawn: "Drawn") -> Iterator[Batch]:
        library, length = self.compute.library, drawn.length
        rows, owner, sequences = (self.compute.array(index) for index in (drawn.rows, drawn.row_owner, drawn.sequences))
        advantage, weight = batch.advantage[rows], batch.weight[rows]
        if drawn.padding is not None:
            weight = weight * self.compute.array(drawn.padding)
        count, mean, std = moments(advantage, weight, owner, len(drawn.sizes), self.compute, self.world)
        if self.config.advantage_norm == "minibatch":
            advantage = (advantage - mean[owner]) / std[owner]
        weight = weight / library.clip(count, 1, None)[owner]
        action, log_prob, value, target, starts = (
            field[rows] for field in (batch.action, batch.log_prob, batch.value, batch.target, batch.starts)
        )
        state = tuple(tensor[sequences] for tensor in batch.state)
        perturbation = tuple(self.compute.array(moves[drawn.rows]) for moves in batch.perturbation)
        short = len(drawn.sizes) < self.config.num_minibatches
        end = 0
        for size, valid in zip(drawn.sizes, count.tolist(), strict=True):
            start, end = end, end + size
            if valid == 0:
                continue  # on all ranks alike; a step without a gradient would still move by Adam's momentum
            part: Any = slice(start * length, end * length)
            part_sequences: Any = slice(start, end)
            if short:
                # Drop sequences without a valid row: otherwise these few minibatches could be too large for memory.
                counts = (weight[part].reshape(size, length) > 0).sum(1)
                part_sequences = start + library.where(counts > 0)[0]
                part = (part_sequences[:, None] * length + self.compute.array(np.arange(length))).reshape(-1)
            # Only observations are gathered per minibatch: an epoch's copy of a rollout of images would double its memory.
            obs = tree_map(lambda leaf, part=part: leaf[rows[part]], batch.obs)
            yield Batch(
                obs,
                action[part],
                log_prob[part],
                value[part],
                advantage[part],
                target[part],
                weight[part],
                rows[part],
                starts[part],
                tuple(tensor[part_sequences] for tensor in state),
                tuple(moves[part] for moves in perturbation),
            )

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
