"""How fast does this machine train? Some seconds of a real run in a folder that is thrown away, and where its time goes."""

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
    """Seconds spent in the calls that go through it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, call: Callable[..., T], *arguments: Any) -> T:
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - began


class Timed:
    """An object whose calls of one name are timed; all else is passed through."""

    def __init__(self, inner: Any, method: str) -> None:
        self._inner, self.stopwatch = inner, Stopwatch()
        call = getattr(inner, method)
        setattr(self, method, lambda *arguments: self.stopwatch.time(call, *arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TimedWorld:
    """A world whose messages are timed, waiting for slower ranks included."""

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
        """Drawing noise, storing steps, counting episodes."""
        return max(0.0, 1.0 - self.environments - self.acting - self.learning - self.communication)


class Clock(Callback):
    """Marks where the time goes, and stops the run after some seconds. The first iteration warms up and does not count."""

    def __init__(self, seconds: float, stepping: Stopwatch, acting: Stopwatch, exchanging: Stopwatch) -> None:
        self._seconds = seconds
        self._stepping, self._acting, self._exchanging = stepping, acting, exchanging
        self._learning = 0.0
        self.marks: list[NDArray[np.float64]] = []  # time, step, and the seconds of each part so far

    def on_rollout(self, session: Session, rollout: Rollout) -> None:
        self._collected = time.perf_counter() - self._exchanging.seconds

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        self._learning += now - self._exchanging.seconds - self._collected
        parts = self._stepping.seconds, self._acting.seconds, self._learning, self._exchanging.seconds
        self.marks.append(np.array([now, session.step, *parts]))
        session.stop_requested = len(self.marks) > 1 and now - self.marks[0][0] >= self._seconds

    def speed(self, world: World) -> Speed:
        seconds, steps, *parts = (self.marks[-1] - self.marks[0]).tolist()
        shares = [part / seconds for part in parts]
        return Speed(steps / seconds, seconds, len(self.marks) - 1, world.size, world.cores, *shares)


def bench(config: Config, seconds: float, env: EnvLike | None = None) -> Speed:
    """Train for some seconds with these settings. Started by a launcher, all ranks take part, and each tells its own split."""
    # Without an end: the last iterations of a schedule would be other ones than the first.
    config = config.replace(total_steps=ENDLESS, eval_every=None, save_every=None)
    with ExitStack() as stack:
        stack.enter_context(arithmetic(config))
        world = build_world(config)
        stack.enter_context(ending_together(world, debug=False))
        measured: Any = TimedWorld(world)
        envs, device = rank_envs(config.num_envs, world), build_device(config.device, config.device_ids, world)
        pool = on_all_ranks(
            world, lambda: build_environments(config, env or config.env, len(envs), envs.start, world), debug=False
        )
        stack.callback(pool.close)
        environments: Any = Timed(pool, "step")
        parts = assemble(config, environments, measured, device, envs.start)
        stack.enter_context(arithmetic(config, parts.policy, world))
        acting: Any = Timed(parts.compute, "act")
        parts.collector.player.compute = acting
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        folder.checkpoints.mkdir()
        clock = Clock(seconds, environments.stopwatch, acting.stopwatch, measured.stopwatch)
        observers = Observers([], Console(config.planned_steps, quiet=True), _no_evaluation, [clock])
        ppo.train(parts, Session(config, measured, trainee(parts), folder, observers, None))
        return clock.speed(world)


def _no_evaluation(step: int) -> Scores:
    raise AssertionError(f"evaluations are off, but one was asked for at step {step}")
