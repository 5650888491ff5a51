"""Measure how fast this machine trains, and where the time goes: a real run of some seconds in a temporary folder."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxrl import ppo
from proxrl.build import assemble, build_device, build_environments, build_world, rank_envs, trainee
from proxrl.callback import Callback
from proxrl.config import Config
from proxrl.config.resolve import EnvLike
from proxrl.engine.threads import arithmetic
from proxrl.launch import ending_together
from proxrl.log.console import Console
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder
from proxrl.session import Observers, Session
from proxrl.types import Rollout
from proxrl.world.api import World, on_all_ranks

ENDLESS = 2**50

T = TypeVar("T")


class Stopwatch:
    """Adds up the time of the calls that are made through it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, call: Callable[..., T], *arguments: Any) -> T:
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - start


class Timed:
    """Wraps an object and times the calls of one of its methods. Everything else is passed through."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner, self.stopwatch = inner, Stopwatch()
        call = getattr(inner, method)
        setattr(self, method, lambda *arguments: self.stopwatch.time(call, *arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TimedWorld:
    """Wraps a world and times its messages, including the time spent waiting for slower ranks."""

    def __init__(self, world: World) -> None:
        self.world, self.stopwatch = world, Stopwatch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def sum_(self, tensor: Tensor) -> None:
        self.stopwatch.time(self.world.sum_, tensor)

    def gather(self, value: Any) -> list[Any]:
        return self.stopwatch.time(self.world.gather, value)


@dataclass(frozen=True)
class Speed:
    """Steps of all ranks per second, and the shares of this rank's time."""

    steps_per_second: float
    seconds: float
    iterations: int
    ranks: int
    cores: int
    environments: float
    acting: float
    learning: float
    communication: float

    @property
    def rest(self) -> float:
        """The share of everything else, such as drawing noise, storing steps and counting episodes."""
        return max(0.0, 1.0 - self.environments - self.acting - self.learning - self.communication)


class Clock(Callback):
    """Reads the stopwatches after every iteration, and stops the run after some seconds. The first iteration is a warm-up."""

    def __init__(self, seconds: float, environments: Stopwatch, acting: Stopwatch, communication: Stopwatch) -> None:
        self._seconds = seconds
        self._environments, self._acting, self._communication = environments, acting, communication
        self._learning = 0.0
        self.marks: list[NDArray[np.float64]] = []  # time, step, and the seconds of each share so far

    def on_rollout(self, session: Session, rollout: Rollout) -> None:
        self._collected = time.perf_counter() - self._communication.seconds

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        self._learning += now - self._communication.seconds - self._collected
        seconds = self._environments.seconds, self._acting.seconds, self._learning, self._communication.seconds
        self.marks.append(np.array([now, session.step, *seconds]))
        session.stop_requested = len(self.marks) > 1 and now - self.marks[0][0] >= self._seconds

    def speed(self, world: World) -> Speed:
        total, steps, *seconds = (self.marks[-1] - self.marks[0]).tolist()
        shares = [share / total for share in seconds]
        return Speed(steps / total, total, len(self.marks) - 1, world.size, world.cores, *shares)


def bench(config: Config, seconds: float, env: EnvLike | None = None) -> Speed:
    """Train for some seconds with these settings and return the speed. Under a launcher all ranks train together, and each one
    returns the shares of its own time.
    """
    # An endless run, so that schedules do not change the settings while it is measured.
    config = config.replace(total_steps=ENDLESS, eval_every=None, save_every=None)
    with ExitStack() as stack:
        stack.enter_context(arithmetic(config))
        world = build_world(config)
        stack.enter_context(ending_together(world, debug=False))
        timed_world: Any = TimedWorld(world)
        envs, device = rank_envs(config.num_envs, world), build_device(config.device, config.device_ids, world)
        pool = on_all_ranks(
            world, lambda: build_environments(config, env or config.env, len(envs), envs.start, world), debug=False
        )
        stack.callback(pool.close)
        environments: Any = Timed(pool, "step")
        parts = assemble(config, environments, timed_world, device, envs.start)
        stack.enter_context(arithmetic(config, parts.policy, world, parts.compute.shards.count))
        acting: Any = Timed(parts.compute, "act")
        parts.collector.player.compute = acting
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        folder.checkpoints.mkdir()
        clock = Clock(seconds, environments.stopwatch, acting.stopwatch, timed_world.stopwatch)
        observers = Observers([], Console(config.planned_steps, quiet=True), _no_evaluation, [clock])
        ppo.train(parts, Session(config, timed_world, trainee(parts), folder, observers, None))
        return clock.speed(world)


def _no_evaluation(step: int) -> Scores:
    raise AssertionError(f"evaluation was called at step {step}, although evaluations are off")
