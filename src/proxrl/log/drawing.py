"""The drawing of a training run on a terminal: a few lines that fit its width."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from proxrl.common.numbers import format_number
from proxrl.log.health import Reading
from proxrl.log.sparkline import History, can_show
from proxrl.log.terminal import hours_minutes_seconds

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions
    from rich.segment import Segment

# A text and its style; pieces of a line are kept whole.
Piece: TypeAlias = tuple[str, str]
GAP = "  "
LONGEST_SPARKLINE, SHORTEST_SPARKLINE, SHORTEST_BAR = 60, 10, 10
ABNORMAL = "bold red"


class View(NamedTuple):
    """Everything that is shown of a run at one moment."""

    step: int
    planned_steps: int
    doing: str
    elapsed: int
    time_left: str
    steps_per_second: float
    shares: dict[str, float]
    mean_return: float | None
    best_return: float | None
    mean_length: float | None
    success_rate: float | None
    history: History
    readings: Sequence[Reading]

    @property
    def percent(self) -> int:
        return min(100, 100 * self.step // max(self.planned_steps, 1))


def progress_lines(view: View, width: int, encoding: str) -> list[list[Piece]]:
    """A bar, and behind it the times; on a narrow terminal they are below it."""
    full, empty = "━─" if can_show("━─", encoding) else "#-"
    percent, times = f"{GAP}{view.percent}%", [f"{hours_minutes_seconds(view.elapsed)} elapsed", f"{view.time_left} left"]
    wide = GAP.join([percent, *times])
    narrow = width - len(wide) < SHORTEST_BAR
    behind = percent if narrow else wide
    length = max(1, width - len(behind))
    done = length * min(view.step, view.planned_steps) // max(view.planned_steps, 1)
    bar = [(full * done, "green"), (empty * (length - done), "dim"), (behind, "")]
    return [bar, *flow([(time, "") for time in times], width)] if narrow else [bar]


def flow(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Put pieces on as few lines as they need, two spaces apart."""
    lines: list[list[Piece]] = []
    room = 0
    for text, style in pieces:
        if not lines or len(GAP) + len(text) > room:
            lines.append([(text, style)])
            room = width - len(text)
        else:
            lines[-1].append((GAP + text, style))
            room -= len(GAP) + len(text)
    return lines


def return_pieces(view: View, width: int, encoding: str) -> list[Piece]:
    """The return, its curve as wide as there is room, its best, the length of episodes and the success rate."""
    first = f"return {format_number(view.mean_return)}"
    others = [f"best {format_number(view.best_return)}", f"length {format_number(view.mean_length)}"]
    if view.success_rate is not None:
        others.append(f"success {view.success_rate:.0%}")
    room = width - len(first) - sum(len(GAP) + len(text) for text in others) - len(GAP)
    curve = view.history.line(min(LONGEST_SPARKLINE, room if room >= SHORTEST_SPARKLINE else width), encoding)
    pieces = [(first, "bold"), (curve, "cyan"), *((text, "") for text in others)]
    return [piece for piece in pieces if piece[0]]


def health_lines(view: View, width: int) -> Iterator[list[Piece]]:
    """The metrics of the update, and below them what is wrong with one of them."""
    yield from flow([(text, ABNORMAL if problem else "") for text, problem in view.readings], width)
    for text, problem in view.readings:
        if problem:
            for line in textwrap.wrap(f"{text}: {problem}", width, break_on_hyphens=False):
                yield [(line, ABNORMAL)]


def speed_pieces(view: View) -> list[Piece]:
    shares = [(f"{name} {share:.0%}", "dim") for name, share in view.shares.items() if name != "other" or share >= 0.05]
    return [(f"{view.steps_per_second:,.0f} steps/s", ""), *(shares if any(view.shares.values()) else [])]


def layout(view: View, width: int, encoding: str) -> list[list[Piece]]:
    """Return the lines of the drawing."""
    # A terminal shows Ctrl-C as ^C behind the last line. If that wrapped, the next drawing would leave a line behind.
    width = max(20, width - 3)
    steps = [(f"step {view.step:,}/{view.planned_steps:,}", ""), (view.doing, "bold")]
    return [
        *progress_lines(view, width, encoding),
        *flow(steps, width),
        *flow(return_pieces(view, width, encoding), width),
        *health_lines(view, width),
        *flow(speed_pieces(view), width),
    ]


class TrainingDrawing:
    """What rich draws: the latest view, as wide as the terminal is at that moment."""

    def __init__(self, view: View, encoding: str) -> None:
        self.view, self._encoding = view, encoding

    def __rich_console__(self, console: "RichConsole", options: "ConsoleOptions") -> "Iterator[Segment]":
        from rich.segment import Segment

        # Segments take half the time of rich.text.Text, which would look for places to wrap its lines.
        for number, line in enumerate(layout(self.view, options.max_width, self._encoding)):
            if number:
                yield Segment.line()
            for text, style in line:
                yield Segment(text, console.get_style(style) if style else None)
