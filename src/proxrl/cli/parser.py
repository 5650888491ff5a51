"""How flags are read and shown, the same for all commands."""

import argparse
import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from proxrl.errors import ProxRLError
from proxrl.runs.folder import RUNS_DIR


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


RUN_HELP = "a run folder, or ENV, ENV/NAME or ENV/NAME/seedN below the runs folder"


def add_runs_dir(parser: Parser | argparse._ArgumentGroup) -> None:
    """Add `--runs-dir`, which every command that writes or names runs takes."""
    parser.add_argument(
        "--runs-dir", type=Path, default=Path(RUNS_DIR), metavar="DIR", help=f"folder of all runs (default {RUNS_DIR})"
    )


def add_run(parser: Parser) -> None:
    """Add the argument of a command that takes exactly one run."""
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_runs_dir(parser)


def add_runs(parser: Parser, optional: bool = False) -> None:
    """Add the argument of a command that takes several runs; if it is optional, the default is all runs."""
    many = "*" if optional else "+"
    all_runs = " (default: all runs)" if optional else ""
    parser.add_argument("runs", metavar="RUN", nargs=many, help=f"{RUN_HELP}; all runs below it are taken{all_runs}")
    add_runs_dir(parser)


def add_checkpoint(parser: Parser) -> None:
    """Which policy: a run, and one of its checkpoints."""
    add_run(parser)
    parser.add_argument("--checkpoint", default="latest", metavar="NAME", help="latest, best or step-N (default latest)")


def add_player(parser: Parser) -> None:
    """Which policy, and where and from which seed it plays."""
    add_checkpoint(parser)
    parser.add_argument("--device", metavar="NAME", help="torch device (default: the run's)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes (default: from the run's seed)")


def add_viewer(parser: Parser) -> None:
    """What play and record have in common."""
    add_player(parser)
    parser.add_argument("--deterministic", action="store_true", help="take the likeliest actions (default: sample them)")
    parser.add_argument("--fps", type=float, metavar="N", help="frames per second (default: the environment's own)")


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
