"""The step loop: T steps of N environments into one Rollout. Only actions are computed here; values and log-probabilities
come later, in one pass over the whole rollout.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.engine.api import Compute
from proxrl.engine.frames import FrameBuffer
from proxrl.envs.api import Autoreset, Environments
from proxrl.envs.spaces import space_tree, wrong_values
from proxrl.errors import ProxRLError
from proxrl.policy.heads import env_actions
from proxrl.policy.policy import Policy
from proxrl.types import Episode, Rollout, Tree
from proxrl.world.api import World

# Random numbers drawn ahead for an environment; thousands of choices per action would otherwise fill the memory.
NOISE_NUMBERS = 2**18


class Collector:
    """Steps the environments. They carry over from one rollout to the next, and so does the policy's memory (soft resets),
    unless `hard_resets` begins every rollout with new episodes.
    """

    def __init__(
        self,
        environments: Environments,
        compute: Compute,
        policy: Policy,
        world: World,
        rollout_steps: int,
        first_env: int = 0,
        hard_resets: bool = False,
    ) -> None:
        self.environments, self.compute, self.steps, self.hard_resets = environments, compute, rollout_steps, hard_resets
        self.world, self.first_env = world, first_env
        self.head, self.guard = policy.head, policy.guard
        # Whole rollouts where they fit. It must not depend on this rank's share of the environments.
        self.noise_steps = max(1, min(rollout_steps, NOISE_NUMBERS // policy.head.noise_size))

    def reset(self, seed: int, episode_counts: Sequence[int] | None) -> None:
        """Begin an episode in every environment, and the buffers that all rollouts share."""
        self.seed, self.fresh = seed, True
        first = self.environments.reset(seed, episode_counts)
        steps, num_envs, layout = self.steps, self.environments.num_envs, self.head.layout
        self.obs: Tree = tree_map(lambda leaf: _buffer(steps + 1, leaf, self.environments.frame_stack), first)
        tree_map(lambda buffer, leaf: buffer.__setitem__(-1, leaf), self.obs, first)
        self.starts = np.ones((steps + 1, num_envs), np.bool_)
        self.action = np.empty((steps, num_envs, *layout.shape), layout.dtype)
        self.reward = np.empty((steps, num_envs), np.float32)
        self.terminated, self.truncated, self.valid = np.empty((3, steps, num_envs), np.bool_)
        self.state = self.compute.initial_state(num_envs)

    def collect(self, streams: Sequence[np.random.Generator], budget: int) -> Rollout:
        """One rollout; each environment draws from its own stream. At most `budget` steps of all ranks count, so that a run ends
        where it said.
        """
        if self.hard_resets and not self.fresh:
            # An episode that has begun but not moved is begun again, as in a resumed run.
            again = self.environments.reset(self.seed, (self.environments.episode_counts - self.starts[-1]).tolist())
            tree_map(lambda buffer, leaf: buffer.__setitem__(-1, leaf), self.obs, again)
            self.starts[-1] = True
            self.state = self.compute.initial_state(self.environments.num_envs)
        self.fresh = False
        # The last observation of the previous rollout is the first of this one.
        tree_map(lambda buffer: buffer.__setitem__(0, buffer[-1]), self.obs)
        self.starts[0] = self.starts[-1]
        noise_steps = self.noise_steps
        same_step = self.environments.autoreset is not Autoreset.NEXT_STEP
        episodes: list[Episode] = []
        final_times: list[int] = []
        final_envs: list[int] = []
        final_rows: list[Tree] = []
        self.compute.freeze(remember=True)
        obs, act, step_environments = tree_map(lambda buffer: buffer[0], self.obs), self.compute.act, self.environments.step
        for t in range(self.steps):
            if t % noise_steps == 0:
                noise = np.stack([self.head.noise(stream, noise_steps) for stream in streams], axis=1)
            self.guard.check(obs)
            try:
                action, self.state = act(obs, self.state, self.starts[t], noise[t % noise_steps])
            except (IndexError, RuntimeError):
                self._check(t + 1)  # an index out of its range is the likely cause, and then this says so
                raise
            step = step_environments(env_actions(self.head, action))
            obs = step.obs
            tree_map(lambda buffer, leaf, t=t: buffer.__setitem__(t + 1, leaf), self.obs, obs)
            self.action[t] = action
            self.reward[t] = step.reward
            self.terminated[t] = step.terminated
            self.truncated[t] = step.truncated
            self.valid[t] = step.valid
            self.starts[t + 1] = ~step.valid
            if same_step and (step.terminated.any() or step.truncated.any()):
                ended = self.starts[t + 1] = step.terminated | step.truncated
                # Autoreset has replaced the observation: keep the true last one to bootstrap from.
                for n in np.flatnonzero(step.truncated):
                    final_times.append(t)
                    final_envs.append(int(n))
                    if step.final_obs is not None:
                        row = int(np.count_nonzero(ended[:n]))
                        final_rows.append(tree_map(lambda leaf, row=row: leaf[row].copy(), step.final_obs))
            episodes += [episode._replace(step=t) for episode in step.episodes]
        valid = self._within(budget)
        final_index = np.array(final_times, np.int64), np.array(final_envs, np.int64)
        final_obs = tree_map(lambda *rows: np.stack(rows), *final_rows) if final_rows else None
        self._check(self.steps + 1, final_index, final_obs)
        return Rollout(
            self.obs,
            self.starts,
            self.action,
            self.reward,
            self.terminated,
            self.truncated,
            valid,
            final_index,
            final_obs,
            episodes,
        )

    def _within(self, budget: int) -> NDArray[np.bool_]:
        """Which steps count. Past the budget, in the order of time and then of all ranks' environments, they are left out."""
        if self.steps * self.environments.num_envs * self.world.size <= budget:
            return self.valid.copy()
        counts = np.stack(self.world.gather(self.valid.sum(1)))  # [ranks, T]
        earlier = np.cumsum(counts.sum(0)) - counts.sum(0)  # of all ranks
        before = earlier + counts[: self.world.rank].sum(0)
        within: NDArray[np.bool_] = before[:, None] + self.valid.cumsum(1) <= budget
        return self.valid & within

    def _check(
        self,
        rows: int,
        final_index: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.zeros(0, np.int64), np.zeros(0, np.int64)),
        final_obs: Tree | None = None,
    ) -> None:
        """Once per rollout, on the rows of observations that there are: what comes from the environment must be numbers, or
        the weights would soon not be, and within bounds where it is an index.
        """
        steps, num_envs = np.indices((rows, self.environments.num_envs))
        tree = space_tree(self.environments.observation_space)
        # Frames stored once are bytes, of which any is right.
        obs = tree_map(lambda buffer: buffer if isinstance(buffer, FrameBuffer) else buffer[:rows], self.obs)
        places = [("observation", obs, steps, num_envs), ("last observation", final_obs, final_index[0] + 1, final_index[1])]
        checked: list[Any] = [("reward", None, self.reward[: rows - 1], steps[1:], num_envs[1:])]
        checked += [
            (name, space, array, step, env)
            for name, obs, step, env in places
            if obs is not None
            for space, array in zip(tree_leaves(tree), tree_leaves(obs), strict=True)
        ]
        for name, space, array, step, env in checked:
            wrong = wrong_values(space, array)
            if wrong is not None:
                bad = tuple(np.argwhere(wrong)[0])
                place = bad[: step.ndim]
                among = "" if np.issubdtype(array.dtype, np.floating) else f", which is not in {space}"
                which = f"environment {self.first_env + env[place]}"
                raise ProxRLError(
                    f"{which} gave the {name} {array[bad]} in step {step[place]} of a rollout{among};"
                    " fix the environment (nothing was learnt from this rollout)"
                )


def _buffer(steps: int, leaf: NDArray[Any], stack: int) -> Any:
    """Room for `steps` observations like this one."""
    if stack > 1 and leaf.dtype == np.uint8:
        return FrameBuffer(steps, len(leaf), leaf.shape[1:], leaf.dtype, stack)
    return np.empty((steps, *leaf.shape), leaf.dtype)
