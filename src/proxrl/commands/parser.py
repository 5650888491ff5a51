"""How flags are read and shown, the same for all commands."""

import argparse
import difflib
import shutil
from collections.abc import Sequence
from typing import NoReturn

from proxrl.errors import ProxRLError


class Parser(argparse.ArgumentParser):
    """Answers a wrong word with one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ProxRLError(f"{message} ('{self.prog} --help' lists what there is)")

    def check_flags(self, words: Sequence[str]) -> None:
        """Name the nearest flag for one that does not exist; argparse would only say that it does not."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            name = word.partition("=")[0]
            if word.startswith("--") and name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                raise ProxRLError(f"there is no flag {name}{hint} ('{self.prog} --help' lists them)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says `--[no-]flag` once and `KEY=VALUE ...` once, where argparse repeats itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(shutil.get_terminal_size().columns, 120))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return f"{action.metavar} ..." if action.nargs == "+" else super()._format_args(action, default_metavar)
