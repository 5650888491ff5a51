"""Arguments that several commands share: runs, checkpoints, and how a policy is played."""

import sys
from pathlib import Path

from proxrl.cli.parser import Parser
from proxrl.config.flags import Group
from proxrl.runs.folder import RUNS_DIR

RUN_HELP = "a run folder, or ENV, ENV/NAME or ENV/NAME/seedN below the runs folder"


def add_runs_dir(parser: Group) -> None:
    """Add `--runs-dir`, which every command that writes or names runs takes."""
    parser.add_argument(
        "--runs-dir", type=Path, default=Path(RUNS_DIR), metavar="DIR", help=f"folder of all runs (default {RUNS_DIR})"
    )


def add_run(parser: Parser) -> None:
    """Add the argument of a command that takes exactly one run."""
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_runs_dir(parser)


def add_trust(parser: Group) -> None:
    """Add `--trust`, for commands that import the code which the settings of a run name."""
    parser.add_argument(
        "--trust", action="store_true", help="import the code that the settings of a run or file of others name (SECURITY.md)"
    )


def add_runs(parser: Parser, optional: bool = False) -> None:
    """Add the argument of a command that takes several runs; if it is optional, the default is all runs."""
    all_runs = " (default: all runs)" if optional else ""
    parser.add_argument(
        "runs", metavar="RUN", nargs="*" if optional else "+", help=f"{RUN_HELP}; all runs below it are taken{all_runs}"
    )
    add_runs_dir(parser)


def add_checkpoint(parser: Parser) -> None:
    """Add the arguments that select a policy: a run and one of its checkpoints."""
    add_run(parser)
    parser.add_argument("--checkpoint", default="latest", metavar="NAME", help="latest, best or step-N (default latest)")
    add_trust(parser)


def add_player(parser: Parser) -> None:
    """Add the arguments that select a policy, its device and the seed of its episodes."""
    add_checkpoint(parser)
    parser.add_argument("--device", metavar="NAME", help="torch device (default: the run's)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the episodes (default: derived from the run's seed)")


def note_sudden_end(run: str, runs_dir: Path) -> None:
    """Print a line if the process of a run has ended without writing its status."""
    from proxrl.runs.lookup import find_run
    from proxrl.runs.status import summarize

    summary = summarize(find_run(run, runs_dir))
    if summary.sudden_end:
        print(f"proxrl: the training of {summary.folder.path} {summary.sudden_end}", file=sys.stderr)


def add_viewer(parser: Parser) -> None:
    """Add the arguments that `play` and `record` share."""
    add_player(parser)
    parser.add_argument("--deterministic", action="store_true", help="take the most likely actions (default: sample them)")
    parser.add_argument("--fps", type=float, metavar="X", help="frames per second (default: the environment's)")
