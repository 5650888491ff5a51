"""What all displays share: lines that stay, and on a terminal a drawing below them that is redrawn in place."""

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from proxrl.common.signals import write_to_stderr

# rich is imported when something is first drawn, since most commands in a pipe never need it.
if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LIVE_SECONDS = 1 / 5
PLAIN_SECONDS = 10.0


def can_redraw(stream: TextIO) -> bool:
    """Return whether the stream is a terminal whose lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def hours_minutes_seconds(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class TerminalOutput:
    """Lines of text on a stream, and below them, if the stream is a terminal, one drawing that is replaced in place.

    In a pipe or a log file there are only the lines, without escape codes. A closed window or pipe ends the output, but
    not the work that it reports.

    Args:
        stream: Where to print, usually stdout or stderr.
        quiet: Print nothing at all.
        live: False allows lines only, even on a terminal.
        transient: Remove the drawing at the end.
        auto_refresh: Also redraw ten times a second from a thread. Otherwise only `draw` redraws.
    """

    def __init__(
        self, stream: TextIO, quiet: bool = False, live: bool = True, transient: bool = False, auto_refresh: bool = False
    ) -> None:
        self.quiet = quiet
        self._stream, self._transient, self._auto_refresh = stream, transient, auto_refresh
        self._redraws = live and not quiet and can_redraw(stream)
        self._live: Live | None = None
        self._notices: deque[str] = deque()

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def redraws(self) -> bool:
        """Whether `draw` has an effect."""
        return self._redraws and not self.quiet

    @property
    def interval(self) -> float:
        """Seconds between two reports of progress: drawings are replaced and may come often, lines stay and must be few."""
        return LIVE_SECONDS if self._redraws else PLAIN_SECONDS

    def draw(self, drawing: "RenderableType") -> None:
        """Show a drawing in place of the one before. Does nothing if lines can't be redrawn."""
        if not self.redraws:
            return
        self._print_notices()
        with self._until_stream_is_lost():
            if self._live is None:
                self._live = self._start(drawing)
            else:
                self._live.update(drawing, refresh=True)

    def print(self, text: str) -> None:
        """Print a line that stays, above the drawing if there is one."""
        if self.quiet or not text:
            return
        text = text.encode(self.encoding, errors="replace").decode(self.encoding)
        with self._until_stream_is_lost():
            if self._live is None:
                print(text, file=self._stream, flush=True)
            else:
                from rich.text import Text

                # Unwrapped, so that a path that is longer than the terminal is wide can be copied.
                self._live.console.print(Text(text), soft_wrap=True)

    def notice(self, text: str) -> None:
        """Print a line that stays, from a signal handler. It may interrupt a drawing, so the line is printed before the next one;
        if nothing is drawn, it goes to stderr at once.
        """
        if self.quiet:
            return
        if self._live is None:
            write_to_stderr(text)
        else:
            self._notices.append(text)

    def close(self, erase: bool = False) -> None:
        """Give the terminal back, with the last drawing on it unless `erase` is set. Later lines are printed plainly, later
        drawings are not shown.
        """
        self._print_notices()
        live, self._live, self._redraws = self._live, None, False
        if live is not None:
            live.transient = live.transient or erase
            with self._until_stream_is_lost():
                live.stop()
        self._print_notices()  # those of signals that arrived meanwhile

    def _print_notices(self) -> None:
        while self._notices:
            self.print(self._notices.popleft())

    def _start(self, drawing: "RenderableType") -> "Live":
        from rich.console import Console
        from rich.live import Live

        # The stream is known to be a terminal, so rich must not guess again; on Windows rich still chooses how to draw.
        console = Console(file=self._stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        live = Live(drawing, console=console, auto_refresh=self._auto_refresh, refresh_per_second=10, transient=self._transient)
        live.start(refresh=True)
        return live

    @contextlib.contextmanager
    def _until_stream_is_lost(self) -> Iterator[None]:
        """Print nothing more once the terminal or pipe is gone."""
        try:
            yield
        except OSError:
            self.quiet = True
