"""How a study goes, for a person: a line for every trial, and on a terminal those that are running below."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proxrl.tuning.pool import Running
from proxrl.tuning.study import PARTS


class Display:
    def __init__(self, total: int, seeds: int, done: int, quiet: bool, stream: TextIO | None = None) -> None:
        self._total, self._parts, self._quiet = total, seeds * PARTS, quiet
        self._stream = stream or sys.stdout
        self._done_before, self._began = done, time.monotonic()
        live = not quiet and self._stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
        console = Console(file=self._stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None
        if self._live is not None:
            self._live.start()

    def trial(self, index: int, what: str, done: int, best: str) -> None:
        """One has ended."""
        self.message("  ".join(filter(None, [f"trial {index}", what, best, f"{done}/{self._total}", self._time_left(done)])))

    def update(self, running: Sequence[Running]) -> None:
        if self._live is None:
            return
        lines = []
        for trial in running:
            value = "-" if trial.value is None else f"{trial.value:,.1f}"
            lines.append(Text(f"trial {trial.index}  {100 * trial.part // self._parts}%  return {value}", style="dim"))
        self._live.update(Group(*lines), refresh=True)

    def message(self, text: str) -> None:
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(Text(text), soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _time_left(self, done: int) -> str:
        """By the pace of this session."""
        mine, left = done - self._done_before, self._total - done
        if mine < 1 or left < 1:
            return ""
        seconds = round((time.monotonic() - self._began) / mine * left)
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
