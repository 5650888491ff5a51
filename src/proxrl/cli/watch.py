"""`proxrl watch`: the report page, live."""

from typing import Any

from proxrl.cli.arguments import add_runs
from proxrl.cli.parser import Parser

DESCRIPTION = """\
Serve the page of proxrl report live: it follows running jobs and finds new ones. It is reachable
from this machine only. Ctrl-C ends it.

  proxrl watch
  proxrl watch CartPole-v1 --port 8000
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser, optional=True)
    parser.add_argument("--port", type=int, metavar="N", help="port on 127.0.0.1 (default: 8265, or the next free one)")


def run(options: dict[str, Any]) -> int:
    from proxrl.report.server import watch

    watch(options["runs"] or [options["runs_dir"]], options["port"], options["runs_dir"])
    return 0
