"""`proxrl runs`: a list of runs."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from proxrl.cli.arguments import add_runs
from proxrl.cli.parser import Parser
from proxrl.cli.table import print_table
from proxrl.common.numbers import format_number
from proxrl.many_runs.grid import ranges

if TYPE_CHECKING:
    from proxrl.runs.status import Summary

DESCRIPTION = """\
List runs, the latest first: one line for each environment and name.

  proxrl runs
  proxrl runs CartPole-v1 --each
"""


def add_arguments(parser: Parser) -> None:
    add_runs(parser, optional=True)
    parser.add_argument("--each", action="store_true", help="print one line for each seed")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, with one entry for each seed")


def run(options: dict[str, Any]) -> int:
    from proxrl.errors import ProxRLError
    from proxrl.runs.lookup import find_runs
    from proxrl.runs.status import summarize

    names, runs_dir = options["runs"], options["runs_dir"]
    if not names and not runs_dir.is_dir():
        raise ProxRLError(f"there is no folder {runs_dir} yet; 'proxrl train CartPole-v1' makes one, or --runs-dir names another")
    found = [summarize(folder) for folder in find_runs(names or [runs_dir], runs_dir)]
    long_ago = datetime.fromtimestamp(0, UTC)
    found.sort(key=lambda one: one.updated or long_ago, reverse=True)
    for one in found:
        if one.sudden_end:
            print(f"proxrl: {one.folder.path} {one.sudden_end}", file=sys.stderr)
    if options["json"]:
        print(json.dumps([as_json(one) for one in found]))
        return 0
    groups: dict[tuple[Any, ...], list[Summary]] = {}
    for one in found:
        groups.setdefault((one.folder.path,) if options["each"] else (one.folder.path.parent, one.env, one.name), []).append(one)
    columns = ["environment", "name", "seeds", "steps", "return", "best return", "success", "age", "state"]
    rows = [row(group) for group in groups.values()]
    if all(one.success_rate is None for one in found):
        index = columns.index("success")
        for cells in (columns, *rows):
            del cells[index]
    print_table(columns, rows, numbers=["steps", "return", "best return", "success", "age"])
    return 0


def row(group: Sequence["Summary"]) -> list[str]:
    """Return the cells of the seeds of one name: fewest and most steps, mean return, highest best return,
    mean success rate.

    A run has no best return before 20 episodes have finished.
    """
    seeds = sorted(one.seed for one in group if one.seed is not None)
    steps = sorted(one.step for one in group)
    returns = [one.mean_return for one in group if one.mean_return is not None]
    successes = [one.success_rate for one in group if one.success_rate is not None]
    best = max((one.best_return for one in group if one.best_return is not None), default=None)
    updated = max((one.updated for one in group if one.updated is not None), default=None)
    changed = sorted({change.setting for one in group for change in one.changes})
    states = Counter(one.state for one in group)
    return [
        group[0].env,
        group[0].name,
        ranges(seeds),
        f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} - {steps[-1]:,}",
        format_number(sum(returns) / len(returns) if returns else None),
        format_number(best),
        f"{sum(successes) / len(successes):.0%}" if successes else "-",
        "-" if updated is None else age((datetime.now(UTC) - updated).total_seconds()),
        (next(iter(states)) if len(states) == 1 else ", ".join(f"{count} {state}" for state, count in states.items()))
        + (f" (changed {', '.join(changed)})" if changed else ""),
    ]


def age(seconds: float) -> str:
    """Return a time span in its largest whole unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def as_json(one: "Summary") -> dict[str, Any]:
    return {
        "path": str(one.folder.path),
        "env": one.env,
        "name": one.name,
        "seed": one.seed,
        "state": one.state,
        "ended_without_warning": one.sudden_end is not None,
        "step": one.step,
        "planned_steps": one.planned_steps,
        "mean_return": one.mean_return,
        "best_return": one.best_return,
        "success_rate": one.success_rate,
        "finished_by": one.status.get("finished_by"),
        "changes": [change._asdict() for change in one.changes],
        "origin": None if one.origin is None else one.origin._asdict(),
        "updated": one.updated.isoformat() if one.updated else None,
    }
