"""`proxrl compare`: the returns of several runs side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxrl.cli.arguments import add_runs
from proxrl.cli.parser import Parser
from proxrl.cli.table import print_table
from proxrl.errors import printable

if TYPE_CHECKING:
    from proxrl.report.compare import Comparison, Estimate

DESCRIPTION = """\
Compare the returns of runs with each other and with published results, and print rliable's
aggregate scores with 95% intervals.

  proxrl compare runs
  proxrl compare runs/CartPole-v1/ppo runs/CartPole-v1/wide --out compare.svg

Runs of the same name form one group. Scores are scaled so that 0 is the untrained policy and 1 the
published return (the median of several; without any, the best mean of the runs compared).
IQM: mean of the middle half of all scores. Optimality gap: how far scores stay below 1.
Probability of improvement: how often a run of one group is better than a run of another.
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("compare.png"),
        metavar="FILE",
        help="chart to write, as PNG, SVG or PDF (default compare.png)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, and write no chart")


def run(options: dict[str, Any]) -> int:
    from proxrl.report.compare import chart, compare
    from proxrl.report.plot import check_figure

    if not options["json"]:
        check_figure(options["out"])
    comparison = compare(options["runs"], options["runs_dir"])
    if options["json"]:
        print(json.dumps(comparison.as_json()))
        return 0
    print_returns(comparison)
    print_success_rates(comparison)
    if comparison.aggregates:
        print()
        print_aggregates(comparison)
    for note in comparison.notes:
        print(printable(f"Note: {note}"))
    if comparison.aggregates:
        print(f"Wrote {chart(comparison, options['out'])}")
    return 0


def print_returns(comparison: "Comparison") -> None:
    import numpy as np

    rows = []
    for task in comparison.results:
        row = [task.env]
        for name in comparison.names:
            values = task.returns.get(name, ())
            spread = f" ± {np.std(values):,.2f}" if len(values) > 1 else ""  # one seed has no spread
            row.append(f"{np.mean(values):,.2f}{spread} ({len(values)})" if values else "-")
        row.append("-" if task.reference is None else task.reference.figure())
        rows.append(row)
    kind = (
        "evaluation return of the last checkpoint"
        if comparison.scored_by == "evaluation"
        else "return of the last training episodes (at most 100)"
    )
    print(f"Mean {kind} ± standard deviation over seeds (number of seeds)")
    print_table(["environment", *comparison.names, "published"], rows, numbers=[*comparison.names, "published"])


def print_success_rates(comparison: "Comparison") -> None:
    """Print a table of the environments whose info tells successes; nothing if there is none."""
    import numpy as np

    rows = []
    for task in comparison.results:
        rates = [task.success_rates.get(name, ()) for name in comparison.names]
        if any(rates):
            rows.append([task.env, *(f"{np.mean(values):.0%} ({len(values)})" if values else "-" for values in rates)])
    if rows:
        print("\nMean success rate of the same episodes (number of seeds)")
        print_table(["environment", *comparison.names], rows, numbers=comparison.names)


def print_aggregates(comparison: "Comparison") -> None:
    from proxrl.report.compare import AGGREGATES

    print("Aggregate score [95% interval]")
    titles = list(AGGREGATES.values())
    rows = [[name, *(interval(estimates[name]) for estimates in comparison.aggregates.values())] for name in comparison.names]
    print_table(["", *titles], rows, numbers=titles)
    if comparison.improvement:
        print("\nProbability of improvement [95% interval]")
        for (better, other), estimate in comparison.improvement.items():
            print(printable(f"{better} over {other}: {interval(estimate)}"))


def interval(estimate: "Estimate") -> str:
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
