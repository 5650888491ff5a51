"""A policy acting in a pool of environments: the loop that training and evaluation share."""

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxrl.engine.api import Compute
from proxrl.envs.api import Autoreset, Environments
from proxrl.policy.heads import Head, env_actions
from proxrl.policy.policy import Policy
from proxrl.types import ActingOutputs, Step, Tree

# The most random numbers that are drawn ahead for an environment: an action space may have thousands of choices.
NOISE_NUMBERS = 2**18


class Player:
    """Steps the environments with the policy's actions. `obs`, `starts` and `state` are what it acts on next: observations
    [N, ...], which of them begin an episode [N], and the policy's memory. Errors number environments from `first_env`.
    `environment_seconds` is the time that the environments' steps have taken.
    """

    def __init__(self, environments: Environments, compute: Compute, policy: Policy, first_env: int = 0) -> None:
        self.environments, self.compute, self.first_env = environments, compute, first_env
        self.head, self.guard = policy.head, policy.guard
        self._next_step = environments.autoreset is Autoreset.NEXT_STEP
        self.environment_seconds = 0.0

    def begin(self, obs: Tree) -> None:
        """Begin an episode in every environment, from observations that a reset returned."""
        self.obs = obs
        self.starts = np.ones(self.environments.num_envs, np.bool_)
        self.state = self.compute.initial_state(self.environments.num_envs)

    def step(self, noise: NDArray[np.float32] | None, outputs: ActingOutputs | None = None) -> tuple[NDArray[Any], Step]:
        """Act once in every environment; return the actions as they were sampled [N, ...] and their result."""
        self.guard.check(self.obs, self.first_env)
        action, self.state = self.compute.act(self.obs, self.state, self.starts, noise, outputs)
        actions, before = env_actions(self.head, action), perf_counter()
        step = self.environments.step(actions)
        self.environment_seconds += perf_counter() - before
        self.obs = step.obs
        # With next-step autoreset, the dummy step returns the first observation of the next episode.
        self.starts = ~step.valid if self._next_step else step.terminated | step.truncated
        return action, step


def draw_noise(head: Head, streams: Sequence[np.random.Generator], most_steps: int) -> Iterator[NDArray[np.float32]]:
    """Yield noise [N, noise_size] for one step after another. Each environment has a stream of its own, from which numbers are
    drawn for up to `most_steps` steps at a time. Some heads keep the same numbers for several steps.
    """
    draws = max(1, min(math.ceil(most_steps / head.noise_interval), NOISE_NUMBERS // head.noise_size))
    while True:
        for noise in np.stack([head.noise(stream, draws) for stream in streams], axis=1):
            yield from repeat(noise, head.noise_interval)
