"""The contract between environments and the rest: a pool of N environments behind `reset` and `step`."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from proxrl.common.seeding import Purpose, integer_seed
from proxrl.types import Episode, Step, Tree


class Autoreset(Enum):
    """What a pool does when an episode ends; it decides where the successor of the last step is found."""

    SAME_STEP = "same-step"  # resets at once; `final_obs` carries the true last observation
    NEXT_STEP = "next-step"  # obs is the true last observation; the next step is a dummy (`valid` False) that resets
    LOST = "lost"  # resets at once and forgets the last observation: V(s_t) stands in for its value, an approximation


class Environments(Protocol):
    """N environments stepped together.

    `terminated` and `truncated` stay apart and are never both set: terminated wins.
    """

    num_envs: int
    observation_space: gymnasium.Space  # of one environment
    action_space: gymnasium.Space  # of one environment
    autoreset: Autoreset
    frame_stack: int  # frames in an observation, each but the newest also in the one before; 1 where observations share nothing
    episode_counts: NDArray[np.int64]  # [N] episodes begun; together with the seed it addresses the next episode's seed

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        """Begin an episode everywhere and return observations [N, ...]; `episode_counts` goes on where a saved run was."""

    def step(self, action: Tree) -> Step:
        """Take one action [N, ...] in each environment."""

    def close(self) -> None:
        """Release processes and memory; safe to call twice."""


# Where a single environment's info tells the return and length of the whole episode, when that differs from what the learner
# sees: None at an ending that is none for the player, such as a lost life.
WHOLE_EPISODE = "whole_episode"


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Each episode has a seed of its own, so that a resumed run meets the very episodes it would have met."""
    return integer_seed(seed, Purpose.EPISODE, env, episode)


class EpisodeTracker:
    """Returns and lengths of the running episodes, counted on both kinds of ending."""

    def __init__(self, num_envs: int) -> None:
        self.total_reward = np.zeros(num_envs, np.float64)
        self.length = np.zeros(num_envs, np.int64)

    def reset(self) -> None:
        self.total_reward[:] = 0
        self.length[:] = 0

    def step(self, reward: NDArray[Any], valid: NDArray[np.bool_], ended: NDArray[np.bool_]) -> list[Episode]:
        """Count one step in every environment and return the episodes that it finished.

        `reward` must have the precision that the environments gave it: the returns are sums of doubles.
        """
        self.total_reward += reward * valid
        self.length += valid
        return self.finish(np.flatnonzero(ended)) if ended.any() else []

    def finish(self, finished: NDArray[np.int64]) -> list[Episode]:
        """What the episodes of these environments came to; the next ones begin."""
        episodes = [Episode(int(n), float(self.total_reward[n]), int(self.length[n])) for n in finished]
        self.total_reward[finished] = 0
        self.length[finished] = 0
        return episodes
