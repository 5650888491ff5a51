"""`proxrl report`: one HTML page about runs."""

from pathlib import Path
from typing import Any

from proxrl.cli.arguments import add_runs, add_trust
from proxrl.cli.parser import Parser

DESCRIPTION = """\
Write one HTML page about runs: curves, evaluations, published results, videos, settings and the
command that repeats each run. The page needs no network and no other file.

  proxrl report runs/CartPole-v1/ppo/seed1
  proxrl report runs --out all.html
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="page to write (default: report.html, in the run folder or, for several runs, here)",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=20,
        metavar="N",
        help="evaluation episodes of each kind for runs that were not evaluated yet; 0: no evaluation (default 20)",
    )
    add_trust(parser)


def run(options: dict[str, Any]) -> int:
    from proxrl.report.page import write_report

    page = write_report(options["runs"], options["out"], options["episodes"], options["runs_dir"], options["trust"])
    print(f"Wrote {page}")
    return 0
