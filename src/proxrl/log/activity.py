"""What a run is doing at this moment, and where its time goes."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

# How activities with a known end are described; others show their share in percent.
COUNTED = {"learning": "learning epoch {done} of {total}", "evaluating": "evaluating, {done} of {total} episodes"}


class TimeSpent(NamedTuple):
    """Seconds by what they were spent on."""

    environments: float = 0.0
    acting: float = 0.0  # the rest of collecting: choosing actions, storing steps
    learning: float = 0.0
    other: float = 0.0  # evaluating, saving, logging, callbacks, compiling

    def plus(self, more: "TimeSpent") -> "TimeSpent":
        return TimeSpent(*(one + other for one, other in zip(self, more, strict=True)))

    def shares(self) -> dict[str, float]:
        """Return the shares of the whole, which add up to 1 once time has passed."""
        total = sum(self)
        return {name: seconds / total if total > 0 else 0.0 for name, seconds in self._asdict().items()}


class Activity:
    """What this rank is doing: its name, and how much of it is done.

    The training loop writes it, and the thread that redraws the display reads it. Both happen without a lock, because it is
    written in every step: at worst, the display shows a wrong percentage for a moment.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.doing, self.done, self.total = "starting", 0, 0
        self.environment_seconds = 0.0  # within "collecting", since the last lap

    def begin(self, doing: str, total: int = 0) -> None:
        """Begin another activity. `total` is the value that `done` reaches at its end, if it is known."""
        now = self._clock()
        self._seconds[self.doing] += now - self._since
        self._since = now
        self.done, self.total, self.doing = 0, total, doing

    def add(self, finished: int, _: int = 0) -> None:
        """Count what is done; a function that watches episodes (`EpisodeWatcher`)."""
        self.done += finished

    @contextmanager
    def during(self, doing: str, total: int = 0) -> Iterator[None]:
        """Do something else for a while, then return to the activity before."""
        before, done, before_total = self.doing, self.done, self.total
        self.begin(doing, total)
        try:
            yield
        finally:
            self.begin(before, before_total)
            self.done = done

    def lap(self) -> TimeSpent:
        """Return the time spent since the last lap."""
        self.begin("logging")
        environments = self.environment_seconds
        acting, learning = max(0.0, self._seconds.pop("collecting", 0.0) - environments), self._seconds.pop("learning", 0.0)
        other = sum(self._seconds.values())
        self._seconds.clear()
        self.environment_seconds = 0.0
        return TimeSpent(environments, acting, learning, other)

    def __str__(self) -> str:
        doing, done, total = self.doing, self.done, self.total
        if total <= 0:
            return doing
        if doing in COUNTED:
            return COUNTED[doing].format(done=min(done, total), total=total)
        return f"{doing} {min(100, 100 * done // total)}%"
