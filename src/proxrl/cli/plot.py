"""`proxrl plot`: learning curves."""

from pathlib import Path
from typing import Any

from proxrl.cli.arguments import add_runs
from proxrl.cli.parser import Parser

DESCRIPTION = """\
Draw the learning curves of runs: one line for each name, the mean over its seeds with a 95%
bootstrap interval.

  proxrl plot runs --out curves.svg
  proxrl plot runs/CartPole-v1 --metric return entropy --x time
  proxrl plot runs --text
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("curves.png"),
        metavar="FILE",
        help="file to write, as PNG, SVG or PDF (default curves.png)",
    )
    parser.add_argument(
        "--metric",
        nargs="+",
        default=["return"],
        metavar="NAME",
        help="metrics to draw, one row of panels each: return, length, success, or any logged metric, with or without the part"
        " before its slash (default return)",
    )
    parser.add_argument(
        "--x", choices=["step", "time"], default="step", help="horizontal axis: steps or training time (default step)"
    )
    parser.add_argument(
        "--smoothing",
        type=float,
        default=0.03,
        metavar="X",
        help="share of the run over which each point is averaged (default 0.03)",
    )
    parser.add_argument("--text", action="store_true", help="print sparklines instead of writing a file")


def run(options: dict[str, Any]) -> int:
    from proxrl.report.plot import as_text, collect_bands, plot

    chosen = {
        "metrics": list(dict.fromkeys(options["metric"])),
        "by": options["x"],
        "smoothing": options["smoothing"],
        "runs_dir": options["runs_dir"],
    }
    if options["text"]:
        print(as_text(collect_bands(options["runs"], **chosen), options["x"]))
        return 0
    print(f"Wrote {plot(options['runs'], options['out'], **chosen)}")
    return 0
