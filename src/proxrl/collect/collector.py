"""Collect rollouts: T steps of N environments.

The step loop computes only actions; values and log-probabilities follow in large batches. If policy and value share their
network, or have a memory, the step loop computes all three.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from proxrl.collect.info import InfoRecorder
from proxrl.collect.player import Player, draw_noise
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.engine.api import Compute
from proxrl.engine.frames import FrameBuffer
from proxrl.envs.api import Autoreset, Environments
from proxrl.envs.spaces import is_image, space_tree, wrong_values
from proxrl.errors import ProxRLError
from proxrl.log.activity import Activity
from proxrl.policy.policy import Policy
from proxrl.types import ActingOutputs, Episode, Progress, Rollout, State, Step, Tree
from proxrl.world.api import World

# Called with the row of the rollout and the result of a step, before the next step is taken.
StepWatcher: TypeAlias = Callable[[int, Step], None]


class Collector:
    """Collects one rollout after another. Environments and the policy's memory carry over from one to the next (soft resets),
    unless --resets hard begins every rollout with new episodes. All rollouts share one set of buffers. `keeps_final_obs` if a
    learner needs the last observation of every episode.
    """

    def __init__(
        self,
        environments: Environments,
        compute: Compute,
        policy: Policy,
        world: World,
        config: Config,
        first_env: int = 0,
        activity: Activity | None = None,
        keeps_final_obs: bool = False,
    ) -> None:
        self.environments, self.compute, self.world, self.first_env = environments, compute, world, first_env
        self.steps, self.sequence_length = config.rollout_steps, config.steps_per_sequence
        self.hard_resets, self.keeps_final_obs = config.resets == "hard", keeps_final_obs
        self.activity = activity or Activity()
        self.player = Player(environments, compute, policy, first_env)
        self.watchers: list[StepWatcher] = []  # called after every step
        self.info = InfoRecorder((), self.steps, environments.num_envs)

    def record_info(self, keys: Sequence[str]) -> None:
        """Record the numbers of these keys of `info`, for `Progress.info`."""
        if keys:
            self.environments.record_info(keys)
            self.info = InfoRecorder(keys, self.steps, self.environments.num_envs)
            self.watchers.append(self.info.add)

    def reset(self, seed: int, episode_counts: Sequence[int] | None) -> None:
        """Begin an episode in every environment. `episode_counts` are the episodes that the environments of all ranks have begun
        in earlier sessions.
        """
        steps, num_envs, layout = self.steps, self.environments.num_envs, self.player.head.layout
        ours = None if episode_counts is None else episode_counts[self.first_env : self.first_env + num_envs]
        self.seed, self.fresh = seed, True
        self.activity.begin("resetting the environments")
        self.player.begin(self.environments.reset(seed, ours))
        stack = self.environments.frame_stack
        leaves = space_tree(self.environments.observation_space)
        self.obs: Tree = tree_map(lambda space, leaf: _buffer(steps + 1, space, leaf, stack), leaves, self.player.obs)
        self.write_obs: Tree = tree_map(_writer, self.obs)
        self.starts = np.ones((steps + 1, num_envs), np.bool_)
        self.action = np.empty((steps, num_envs, *layout.shape), layout.dtype)
        self.reward = np.empty((steps, num_envs), np.float32)
        self.terminated, self.truncated, self.valid = np.empty((3, steps, num_envs), np.bool_)

    def collect(self, streams: Sequence[np.random.Generator], budget: int) -> Rollout:
        """Collect a rollout; each environment draws its noise from its own stream.

        It ends early when the steps of all ranks reach `budget`. Steps past it, of environments later in the order of all ranks,
        do not count.
        """
        self.activity.begin("collecting", self.steps)
        if self.hard_resets and not self.fresh:
            # An episode in which no step was taken is restarted, as in a resumed run.
            self.player.begin(self.environments.reset(self.seed, self._begun_episodes()))
        self.fresh = False
        self.compute.freeze()
        self._write_obs(0)
        noise = draw_noise(self.player.head, streams, self.steps)
        episodes: list[Episode] = []
        endings = Endings(self.environments.autoreset, self.keeps_final_obs)
        states: list[State] = []
        outputs: ActingOutputs = []
        environment_seconds = self.player.environment_seconds
        for t in range(self.steps):
            if self.player.state and t % self.sequence_length == 0:
                states.append(self.player.state)
            try:
                action, step = self.player.step(next(noise), outputs)
            except (IndexError, RuntimeError):
                self._check(t + 1)  # the likely cause is an observed index out of its range; `_check` then raises a clearer error
                raise
            self._write_obs(t + 1)
            self.action[t] = action
            self.reward[t] = step.reward
            self.terminated[t] = step.terminated
            self.truncated[t] = step.truncated
            self.valid[t] = step.valid
            endings.add(t, step, self.player.state)
            episodes += [episode._replace(step=t) for episode in step.episodes]
            self.activity.done = t + 1
            for watch in self.watchers:
                watch(t, step)
            if self._is_spent(t, budget):
                break
        self.activity.environment_seconds += self.player.environment_seconds - environment_seconds
        states.append(self.player.state)
        return self._rollout(t + 1, budget, episodes, endings, states, outputs)

    def progress(self, rollout: Rollout) -> Progress:
        """Return what this rank did, with its environments numbered among those of all ranks."""
        episodes = [episode._replace(env=self.first_env + episode.env) for episode in rollout.episodes]
        return Progress(rollout.steps, episodes, self._begun_episodes(), self.info.sums(rollout))

    def _begun_episodes(self) -> list[int]:
        """Return the episodes begun in each environment, not counting episodes without a step: a resumed run restarts them."""
        begun: list[int] = (self.environments.episode_counts - self.player.starts).tolist()
        return begun

    def _write_obs(self, row: int) -> None:
        if callable(self.write_obs):  # one array, by far the most frequent case
            self.write_obs(row, self.player.obs)
        else:
            tree_map(lambda write, leaf: write(row, leaf), self.write_obs, self.player.obs)
        self.starts[row] = self.player.starts

    def _is_spent(self, t: int, budget: int) -> bool:
        """Return whether the steps of all ranks up to row t reach the budget. Ranks exchange counts only once the budget could
        have been reached.
        """
        rows = t + 1
        if rows == self.steps or rows * self.environments.num_envs * self.world.size < budget:
            return False
        steps: int = sum(self.world.gather(int(self.valid[:rows].sum())))
        return steps >= budget

    def _rollout(
        self,
        steps: int,
        budget: int,
        episodes: list[Episode],
        endings: "Endings",
        states: list[State],
        outputs: ActingOutputs,
    ) -> Rollout:
        # The pool may reuse its buffers, or release them: worker processes share theirs.
        self.player.obs = tree_map(np.copy, self.player.obs)
        final_index, final_obs, final_state = endings.arrays()
        self._check(steps + 1, final_index, final_obs)
        valid = self._within(steps, budget)
        past = self.valid[steps - 1] & ~valid[-1]  # only the last row can be past the budget
        last = np.zeros_like(valid)
        last[-1] = True
        last[steps - 2 : steps - 1] |= past
        return Rollout(
            obs=tree_map(lambda buffer: _first_rows(buffer, steps + 1), self.obs),
            starts=self.starts[: steps + 1],
            action=self.action[:steps],
            reward=self.reward[:steps],
            terminated=self.terminated[:steps],
            truncated=self.truncated[:steps],
            valid=valid,
            last=last,
            final_index=final_index,
            final_obs=final_obs,
            final_state=final_state,
            states=tuple(torch.stack(parts) for parts in zip(*states, strict=True)),
            episodes=[episode for episode in episodes if episode.step < steps - 1 or not past[episode.env]],
            outputs=outputs,
        )

    def _within(self, steps: int, budget: int) -> NDArray[np.bool_]:
        """Return which steps count: those within the budget, in the order of time and then of all ranks' environments."""
        valid = self.valid[:steps].copy()
        if steps * self.environments.num_envs * self.world.size <= budget:
            return valid
        counts = np.stack(self.world.gather(valid.sum(1)))  # [ranks, T]
        earlier = np.cumsum(counts.sum(0)) - counts.sum(0)  # of all ranks
        before = earlier + counts[: self.world.rank].sum(0)
        within: NDArray[np.bool_] = before[:, None] + valid.cumsum(1) <= budget
        return valid & within

    def _check(
        self,
        rows: int,
        final_index: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.zeros(0, np.int64), np.zeros(0, np.int64)),
        final_obs: Tree | None = None,
    ) -> None:
        """Check the first rows of the buffers, once per rollout: NaN or infinity would soon spoil the weights, and an index out
        of its range would be read as another.
        """
        steps, envs = np.indices((rows, self.environments.num_envs))
        tree = space_tree(self.environments.observation_space)
        # Frames that are stored once are bytes, and every byte value is valid.
        obs = tree_map(lambda buffer: buffer if isinstance(buffer, FrameBuffer) else buffer[:rows], self.obs)
        sources = [("observation", obs, steps, envs), ("last observation", final_obs, final_index[0] + 1, final_index[1])]
        checked: list[Any] = [("reward", None, self.reward[: rows - 1], steps[1:], envs[1:])]
        checked += [
            (name, space, array, step, env)
            for name, source, step, env in sources
            if source is not None
            for space, array in zip(tree_leaves(tree), tree_leaves(source), strict=True)
        ]
        for name, space, array, step, env in checked:
            wrong = wrong_values(space, array)
            if wrong is not None:
                index = tuple(np.argwhere(wrong)[0])
                row = index[: step.ndim]
                reason = "" if np.issubdtype(array.dtype, np.floating) else f", which is not in {space}"
                raise ProxRLError(
                    f"environment {self.first_env + env[row]} gave the {name} {array[index]} in step {step[row]} of a rollout"
                    f"{reason}; fix the environment (this rollout was discarded)"
                )


class Endings:
    """Where episodes were truncated in a rollout and, with same-step autoreset, their true last observations: autoreset has
    replaced them in the buffer, and bootstrapping needs them. If `all_endings`, the same of terminated episodes, for learners.
    """

    def __init__(self, autoreset: Autoreset, all_endings: bool = False) -> None:
        # With next-step autoreset, `obs` has the last observations, and no step has `final_obs`.
        self._lost, self._all = autoreset is Autoreset.LOST, all_endings
        self._times: list[int] = []
        self._envs: list[int] = []
        self._rows: list[Tree] = []
        self._states: list[State] = []

    def add(self, t: int, step: Step, state: State) -> None:
        """Add what ended in row t; `state` is the policy's memory after it."""
        nothing_ended = step.final_obs is None and not self._lost
        if nothing_ended or not (step.truncated.any() or (self._all and step.terminated.any())):
            return
        ended = step.terminated | step.truncated
        for n in np.flatnonzero(ended if self._all else step.truncated):
            self._times.append(t)
            self._envs.append(int(n))
            # Copies, because a view would keep the states of all environments in memory.
            self._states.append(tuple(tensor[n].clone() for tensor in state))
            if step.final_obs is not None:
                row = int(np.count_nonzero(ended[:n]))
                self._rows.append(tree_map(lambda leaf, row=row: leaf[row].copy(), step.final_obs))

    def arrays(self) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Tree | None, State]:
        """Return the places (t, n) [K], [K]; the observations [K, ...] or None; and the memory [K, ...] before them."""
        index = np.array(self._times, np.int64), np.array(self._envs, np.int64)
        states = tuple(torch.stack(parts) for parts in zip(*self._states, strict=True))
        return index, tree_map(lambda *rows: np.stack(rows), *self._rows) if self._rows else None, states


def _buffer(steps: int, space: gymnasium.Space, leaf: NDArray[Any], stack: int) -> Any:
    """Allocate room for `steps` observations like this one."""
    if stack > 1 and is_image(space):
        return FrameBuffer(steps, len(leaf), leaf.shape[1:], leaf.dtype, stack)
    return np.empty((steps, *leaf.shape), leaf.dtype)


def _writer(buffer: Any) -> Callable[[int, NDArray[Any]], None]:
    write: Callable[[int, NDArray[Any]], None] = buffer.store if isinstance(buffer, FrameBuffer) else buffer.__setitem__
    return write


def _first_rows(buffer: Any, rows: int) -> Any:
    return buffer.first(rows) if isinstance(buffer, FrameBuffer) else buffer[:rows]
