"""`proxrl report`"""

from pathlib import Path
from typing import Any

from proxrl.cli.parser import Parser, add_runs

DESCRIPTION = """\
One HTML page about runs: curves, evaluation, published results, video, settings, the command that repeats it.
The page needs no network and no other file.

  proxrl report runs/CartPole-v1/ppo/seed1
  proxrl report runs --out all.html
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="page to write (default: report.html in the run's folder; of several runs, here)"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=20,
        metavar="N",
        help="episodes of each kind for a checkpoint that was not evaluated yet; 0 plays none (default 20)",
    )


def run(options: dict[str, Any]) -> int:
    from proxrl.report.page import write_report

    page = write_report(options["runs"], options["out"], options["episodes"], options["runs_dir"])
    print(f"Wrote {page}")
    return 0
