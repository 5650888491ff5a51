"""Shared by tests of the algorithm: scripted environments, pools of each autoreset style, and ranks that are threads."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from proxrl import build, ppo
from proxrl.build import Parts
from proxrl.config import Config
from proxrl.envs.api import Autoreset, EpisodeTracker, episode_seed
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.types import Episode, Progress, Rollout, Step
from proxrl.world.solo import Solo

Maker = Callable[[], gymnasium.Env]
Ending = tuple[int, str]  # length of an episode, and "terminated" or "truncated"
NEVER: Ending = (10**9, "truncated")
# Real ranks are processes, each with its own global torch generator; these are threads that share one.
_GLOBAL_GENERATOR = threading.Lock()


class Scripted(gymnasium.Env):
    """Observes (its index, its episode, the step), so no two observations are equal. Actions have no effect."""

    observation_space = spaces.Box(-1000, 1000, (3,), np.float32)

    def __init__(self, index: int, script: Sequence[Ending], action_space: gymnasium.Space | None = None) -> None:
        self.index, self.script = index, script
        self.action_space = action_space or spaces.Discrete(2)
        self.episode, self.time = -1, 0
        self.received: list[Any] = []

    def observe(self) -> NDArray[np.float32]:
        return np.array([self.index, self.episode, self.time], np.float32)

    @staticmethod
    def reward(index: int, episode: int, time: int) -> float:
        return 1.0 + index - 0.5 * episode + 0.25 * time

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.episode, self.time = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.received.append(np.copy(action))
        reward = self.reward(self.index, self.episode, self.time)
        self.time += 1
        length, kind = self.script[self.episode % len(self.script)]
        over = self.time == length
        return self.observe(), reward, over and kind == "terminated", over and kind == "truncated", {}


def scripted(scripts: Sequence[Sequence[Ending]], action_space: gymnasium.Space | None = None, first: int = 0) -> list[Maker]:
    return [lambda n=n, s=s: Scripted(first + n, s, action_space) for n, s in enumerate(scripts)]


class NextStepEnvs:
    """Next-step autoreset as in EnvPool. The reward of its dummy steps can be set, and must not have any effect."""

    autoreset = Autoreset.NEXT_STEP
    frame_stack = 1

    def __init__(self, makers: Sequence[Maker], first_env: int = 0, dummy_reward: float = 0.0) -> None:
        self.envs = [maker() for maker in makers]
        self.num_envs, self.first_env, self.dummy_reward = len(makers), first_env, dummy_reward
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.episode_counts = np.zeros(self.num_envs, np.int64)
        self.ended = np.zeros(self.num_envs, np.bool_)
        self.tracker = EpisodeTracker(self.num_envs)

    def begin(self, n: int) -> Any:
        seed = episode_seed(self.seed, self.first_env + n, int(self.episode_counts[n]))
        self.episode_counts[n] += 1
        return self.envs[n].reset(seed=seed)[0]

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Any:
        self.seed = seed
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        return np.stack([self.begin(n) for n in range(self.num_envs)])

    def step(self, action: Any) -> Step:
        valid = ~self.ended
        rows = [
            self.envs[n].step(action[n])[:4] if valid[n] else (self.begin(n), self.dummy_reward, False, False)
            for n in range(self.num_envs)
        ]
        obs, reward, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
        self.ended = terminated | truncated
        episodes = self.tracker.step(reward.astype(np.float32), valid, self.ended)
        return Step(obs, reward.astype(np.float32), terminated, truncated, valid, None, episodes)

    def close(self) -> None: ...


class LostEnvs(InProcessEnvs):
    """Resets in the same step and does not return the last observation."""

    autoreset = Autoreset.LOST

    def step(self, action: Any) -> Step:
        return super().step(action)._replace(final_obs=None)


class ThreadWorld:
    """A rank that is a thread of this process. Sums are over all ranks, in the order of rank."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self.wait, self.slots = rank, size, barrier.wait, slots
        self.kind, self.local_rank, self.local_size, self.cores = "threads", rank, size, 1

    def gather(self, value: Any) -> list[Any]:
        self.slots[self.rank] = value
        self.wait()
        values = list(self.slots)
        self.wait()
        return values

    def sum_(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(0))

    def broadcast_(self, tensor: Tensor) -> None:
        tensor.copy_(self.gather(tensor.clone())[0])

    def abort(self, code: int) -> None:
        raise SystemExit(code)


def run_ranks(size: int, function: Callable[[ThreadWorld], Any]) -> list[Any]:
    """Return what `function` returns on each rank; raise the error of any rank."""
    barrier, slots = threading.Barrier(size, timeout=60), [None] * size
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadWorld(rank, size, barrier, slots))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return results


def assemble(config: Config, environments: Any, world: Any = None, first_env: int = 0) -> Parts:
    """Build the parts around the pool and the world of a test."""
    with _GLOBAL_GENERATOR:
        return build.assemble(config, environments, world or Solo(), torch.device("cpu"), first_env)


def make_rollout(**fields: Any) -> Rollout:
    """Return a rollout with these fields. By default, all steps are valid and no episode ends."""
    shape = np.shape(fields["reward"])
    never, last = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    last[-1] = True
    none = np.zeros(0, np.int64)
    flags = {"terminated": never, "truncated": never, "valid": ~never, "last": last}
    empty = {"obs": None, "starts": never, "action": never, "final_index": (none, none), "final_obs": None}
    memory: dict[str, Any] = {"final_state": (), "states": ()}
    return Rollout(**{**flags, **empty, **memory, "episodes": [], "outputs": [], **fields})


def collect(parts: Parts, iteration: int = 0, budget: int = 10**9) -> Rollout:
    """Collect one rollout as `train` does, from a reset."""
    parts.collector.reset(parts.config.seed, None)
    return parts.collector.collect(ppo.random_streams(parts, iteration), budget)


class RecordingSession:
    """The part of a Session that the algorithm uses. Records what it is given."""

    def __init__(self, parts: Parts, iterations: int | None = None) -> None:
        self.parts, self.most = parts, iterations
        self.step = self.iteration = 0
        self.episode_counts: Sequence[int] | None = None
        self.stopping = False
        self.valid: list[NDArray[np.bool_]] = []
        self.metrics: list[dict[str, float]] = []
        self.episodes: list[Episode] = []

    def call_on_rollout(self, rollout: Rollout) -> None:
        self.valid.append(rollout.valid.copy())

    def report(self, progress: Progress, metrics: dict[str, float]) -> None:
        steps = torch.tensor(progress.steps)
        self.parts.world.sum_(steps)
        self.step += int(steps)
        self.iteration += 1
        self.metrics.append(metrics)
        self.episodes += progress.episodes
        self.stopping = self.iteration == self.most


def train(parts: Parts, iterations: int | None = None) -> RecordingSession:
    session = RecordingSession(parts, iterations)
    # Threads do not make tiny networks faster, and spin while they wait for each other.
    with threadpool_limits(1):
        ppo.train(parts, session)  # type: ignore[arg-type]
    return session
