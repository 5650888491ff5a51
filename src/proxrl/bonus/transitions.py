"""The steps of a rollout as transitions (observation, action, true successor), gathered row by row."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from proxrl.common.chunks import chunk_slices
from proxrl.common.tree import tree_map
from proxrl.envs.spaces import Masked
from proxrl.types import Array, Rollout, Tree
from proxrl.world.api import World


class Transitions:
    """Row t * N + n is the step of environment n at time t.

    The successor is the observation at t + 1, unless autoreset has replaced it: then it is the last observation of the episode.
    Rows are gathered from the rollout when they are asked for, because a copy of all images would double their memory.
    """

    def __init__(self, rollout: Rollout, observation_space: gymnasium.Space, device: torch.device) -> None:
        self.obs, self.final_obs = unmasked(rollout.obs, observation_space), rollout.final_obs
        if self.final_obs is not None:
            self.final_obs = unmasked(self.final_obs, observation_space)
        self.device = device
        self.steps, self.num_envs = rollout.reward.shape
        self.row_size = spaces.flatdim(bare_space(observation_space))
        rows = np.arange(self.steps * self.num_envs)
        ended = rollout.final_index[0] * self.num_envs + rollout.final_index[1]
        self.successor = rows + self.num_envs  # numbers of observations: those of the rollout, then the last ones of episodes
        self.known = np.ones(len(rows), np.bool_)  # False where the pool discards the last observation
        if self.final_obs is None:
            self.successor[ended] = ended
            self.known[ended] = False
        else:
            self.successor[ended] = (self.steps + 1) * self.num_envs + np.arange(len(ended))

    def before(self, rows: NDArray[np.int64]) -> Tree:
        """Return the observations [B, ...] that were acted on in these rows, as tensors."""
        return self._gather(rows)

    def after(self, rows: NDArray[np.int64]) -> Tree:
        """Return their successors; where these are unknown, the observations themselves."""
        return self._gather(self.successor[rows])

    def chunks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all rows, in chunks that fit into memory."""
        for chunk in chunk_slices(self.steps * self.num_envs, self.row_size):
            yield np.arange(chunk.start, chunk.stop)

    def _gather(self, numbers: NDArray[np.int64]) -> Tree:
        final = numbers >= (self.steps + 1) * self.num_envs
        t, n = np.divmod(np.where(final, 0, numbers), self.num_envs)
        which = numbers[final] - (self.steps + 1) * self.num_envs

        def gather(leaf: Any, last: Any) -> Tensor:
            rows = leaf[t, n]
            if len(which):
                rows[final] = last[which]
            return torch.from_numpy(rows).to(self.device)

        return tree_map(gather, self.obs, self.obs if self.final_obs is None else self.final_obs)


def row_numbers(rows: Array) -> NDArray[np.int64]:
    """Return the row numbers of a batch, which are an array or a tensor, as an array."""
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


def bare_space(observation_space: gymnasium.Space) -> gymnasium.Space:
    """Return the space of observations without their action masks."""
    return observation_space["observation"] if isinstance(observation_space, Masked) else observation_space


def unmasked(obs: Tree, observation_space: gymnasium.Space) -> Tree:
    """Return observations without their action masks."""
    return obs["observation"] if isinstance(observation_space, Masked) else obs


def mean_over_ranks(values: NDArray[np.floating], world: World) -> float:
    """Return the mean of the values of all ranks; 0 if there are none."""
    sums = torch.tensor([values.sum(dtype=np.float64), len(values)], dtype=torch.float64)
    world.sum_(sums)
    return float(sums[0] / max(1.0, float(sums[1])))
