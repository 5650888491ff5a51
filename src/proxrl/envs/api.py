"""The contract for environments: a pool of N environments behind `reset` and `step`."""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from proxrl.common.seeding import Purpose, integer_seed
from proxrl.envs.info import Info, successes_of
from proxrl.types import Episode, Step, Tree


class Autoreset(Enum):
    """When a pool resets an environment whose episode has ended, which decides where the last observation is found."""

    SAME_STEP = "same-step"  # in the same step: `obs` begins the next episode, and `final_obs` has the true last observation
    NEXT_STEP = "next-step"  # in the next step, a dummy step with `valid` False: `obs` is the true last observation
    # In the same step, and the last observation is not available, as in some GPU simulators: the value V(s_t) of the observation
    # before it is used instead, an approximation. No pool has this mode yet; it is for environments that return tensors.
    LOST = "lost"


class Environments(Protocol):
    """N environments that are stepped together.

    `terminated` and `truncated` are reported separately and are never both True: terminated wins.
    """

    num_envs: int
    observation_space: gymnasium.Space  # of one environment
    action_space: gymnasium.Space  # of one environment
    autoreset: Autoreset
    frame_stack: int  # frames per observation, all but the newest shared with the observation before; 1 without stacking
    episode_counts: NDArray[np.int64]  # [N] episodes begun; the seed of the next episode follows from it and the run's seed

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        """Begin an episode in every environment and return observations [N, ...].

        `episode_counts` continues the episodes of a saved run.
        """

    def step(self, action: Tree) -> Step:
        """Take one action [N, ...] in each environment."""

    def record_info(self, keys: Sequence[str]) -> None:
        """Return the numbers of these keys of `info` in `Step.info` from now on."""

    def info_names(self) -> list[str]:
        """Return the keys of `info` that hold numbers, as far as recorded steps have shown."""

    def close(self) -> None:
        """Release processes and memory. May be called twice."""


# Key of a single environment's `info` for the (return, length) of the whole episode, if it differs from that of the steps since
# the last reset. None if only the learner's episode has ended, as after a lost life.
WHOLE_EPISODE = "whole_episode"


def env_kwargs_hint(kwargs: Mapping[str, Any], flag: str = "--env-kwargs") -> str:
    """Return an addition to the error message of an environment that could not be made: its arguments, if it has any."""
    return f"; check {flag} {' '.join(f'{key}={value}' for key, value in kwargs.items())}" if kwargs else ""


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Return the seed of one episode. Each has its own, so that a resumed run continues with the same episodes."""
    return integer_seed(seed, Purpose.EPISODE, env, episode)


class EpisodeTracker:
    """Returns and lengths of the current episodes of N environments."""

    def __init__(self, num_envs: int) -> None:
        self.total_reward = np.zeros(num_envs, np.float64)
        self.length = np.zeros(num_envs, np.int64)

    def reset(self) -> None:
        self.total_reward[:] = 0
        self.length[:] = 0

    def step(
        self,
        reward: NDArray[Any],
        valid: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        info: Info | Sequence[Any] = MappingProxyType({}),
    ) -> list[Episode]:
        """Count one step in every environment and return the episodes that it finished.

        `reward` must have the precision that the environments gave it: the returns are sums of doubles. `info` is that of the
        step that ended an episode, not that of the reset after it.
        """
        self.total_reward += reward * valid
        self.length += valid
        return self.finish(np.flatnonzero(ended), info) if ended.any() else []

    def finish(self, finished: NDArray[np.int64], info: Info | Sequence[Any] = MappingProxyType({})) -> list[Episode]:
        """Return the finished episodes of these environments and start counting the next ones."""
        success = successes_of(info, len(self.length))
        episodes = [
            Episode(int(n), float(self.total_reward[n]), int(self.length[n]), success=success[n]) for n in finished.tolist()
        ]
        self.total_reward[finished] = 0
        self.length[finished] = 0
        return episodes
