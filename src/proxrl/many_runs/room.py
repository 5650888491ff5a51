"""How many runs are trained at the same time."""

from collections.abc import Sequence


class Room:
    """Says whether another run may start: as --jobs says, otherwise if the cores carry it without slowing down the others.

    Runs of one name need the same number of cores, and report it after they have started. A run of a name that has not reported
    yet is taken to need as many as the largest so far; before the first report, one run starts alone.
    """

    def __init__(self, jobs: int | None, cores: int) -> None:
        self._jobs, self._cores = jobs, cores
        self._reported: dict[str, int] = {}

    def report(self, name: str, cores: int) -> None:
        self._reported[name] = cores

    def has_room(self, name: str, running: Sequence[str]) -> bool:
        """Return whether a run of this name may start beside those that are running."""
        if not running:
            return True
        if self._jobs is not None:
            return len(running) < self._jobs
        return sum(map(self._needed, [*running, name])) <= self._cores

    def cores_per_run(self, runs: int) -> int | None:
        """Return how many cores each run uses at most: with --jobs, its share; otherwise any number, as if it trained alone."""
        return None if self._jobs is None else max(1, self._cores // min(self._jobs, runs))

    def _needed(self, name: str) -> int:
        return self._reported.get(name, max(self._reported.values(), default=self._cores))
