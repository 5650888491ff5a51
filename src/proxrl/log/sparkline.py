"""The curve of a run in one line of text."""

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
# For terminals and log files whose encoding lacks the blocks.
ASCII = "_.-:=+*#"
# Enough for a sparkline of any width; more points are merged in pairs.
MOST_POINTS = 256


def can_show(text: str, encoding: str) -> bool:
    """Return whether an encoding has these characters."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sparkline(values: Sequence[float], encoding: str = "utf-8") -> str:
    """Return one character per value, from the lowest to the highest."""
    levels = BLOCKS if can_show(BLOCKS, encoding) else ASCII
    if not values:
        return ""
    low, high = min(values), max(values)
    if high <= low:
        return levels[len(levels) // 2] * len(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (value - low) / (high - low))] for value in values)


class History:
    """The returns of a run by step. It keeps at most `MOST_POINTS` points: when they are full, each stands for twice as many
    returns from then on.
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []  # mean step and mean return of every `_merged` returns
        self._pending: list[tuple[float, float]] = []  # those that do not make a point yet
        self._merged = 1
        self._latest = 0.0

    def __len__(self) -> int:
        return len(self._points) + bool(self._pending)

    def add(self, step: float, value: float) -> None:
        self._latest = value
        self._pending.append((step, value))
        if len(self._pending) == self._merged:
            self._points.append(_mean(self._pending))
            self._pending = []
        if len(self._points) == MOST_POINTS:
            self._points = [_mean(self._points[index : index + 2]) for index in range(0, MOST_POINTS, 2)]
            self._merged *= 2

    def values(self, width: int) -> list[float]:
        """Return the means over at most `width` equal intervals of steps. The last one is the latest value itself."""
        points = [*self._points, *([_mean(self._pending)] if self._pending else [])]
        width = min(width, len(points))
        if not points:
            return []
        first, last = points[0][0], points[-1][0]
        intervals: list[list[float]] = [[] for _ in range(width)]
        for step, value in points:
            position = (step - first) / (last - first) if last > first else 1.0
            intervals[min(width - 1, int(width * position))].append(value)
        means: list[float] = []
        for interval in intervals:
            # Without a point, as when no episode ended for long, the curve goes on level.
            means.append(sum(interval) / len(interval) if interval else means[-1] if means else points[0][1])
        return [*means[:-1], self._latest]

    def line(self, width: int, encoding: str) -> str:
        return sparkline(self.values(width), encoding)


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    steps, values = zip(*points, strict=True)
    return sum(steps) / len(points), sum(values) / len(points)
