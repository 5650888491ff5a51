"""How several runs ended: lines for people, returns over seeds, and the commands that show more."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from proxrl.common.numbers import format_number
from proxrl.errors import ProxRLError
from proxrl.log.run_lines import scores
from proxrl.many_runs.grid import ranges
from proxrl.many_runs.plan import PlannedRun
from proxrl.report.curves import bootstrap
from proxrl.runs.status import summarize

MOST_LABELS = 4  # in one line


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or that it has not begun."""

    run: PlannedRun
    state: Literal["finished", "stopped", "failed", "waiting"]
    step: int
    mean_return: float | None = None  # of the last training episodes, 100 at most
    success_rate: float | None = None  # of the same, if they told
    reason: str = ""  # why it failed
    traceback: str = ""


@dataclass(frozen=True)
class SeedSummary:
    """The returns of the finished runs of one name."""

    name: str
    seeds: tuple[int, ...]
    mean: float
    low: float  # the 95% bootstrap interval of the mean
    high: float
    success_rate: float | None  # the mean over those seeds whose episodes told


def summarize_seeds(outcomes: Iterable[Outcome]) -> list[SeedSummary]:
    """Return the mean return of each name, and its interval over seeds."""
    by_name: dict[str, dict[int, Outcome]] = {}
    for outcome in outcomes:
        if outcome.state == "finished" and outcome.mean_return is not None:
            by_name.setdefault(outcome.run.config.name, {})[outcome.run.config.seed] = outcome
    summaries = []
    for name, by_seed in by_name.items():
        returns = np.array([outcome.mean_return for outcome in by_seed.values()], np.float64)
        rates = [outcome.success_rate for outcome in by_seed.values() if outcome.success_rate is not None]
        low, high = bootstrap(returns)
        success = float(np.mean(rates)) if rates else None
        summaries.append(SeedSummary(name, tuple(sorted(by_seed)), float(returns.mean()), float(low), float(high), success))
    return summaries


def scores_of(run: PlannedRun) -> tuple[float | None, float | None]:
    """Return the mean return and the success rate of the last training episodes, from the run's folder."""
    summary = summarize(run.folder)
    return summary.mean_return, summary.status.get("success_rate")


def opening(runs: Sequence[PlannedRun], runs_dir: Path, jobs: int | None, cores: int) -> str:
    """Return the lines before the first run starts."""
    configs = [run.config for run in runs]
    names, seeds = len({config.name for config in configs}), len({config.seed for config in configs})
    product = f" ({names} settings x {seeds} seeds)" if names > 1 and seeds > 1 else ""
    steps = sorted({config.planned_steps for config in configs})
    each = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    lines = [f"Training {configs[0].env}: {len(runs)} runs{product} of {each} steps each, in {runs_dir}"]
    done, resumed = [run for run in runs if run.finished], [run for run in runs if run.step and not run.finished]
    by_rule = [run for run in done if run.step < run.config.planned_steps]
    spent = [run for run in done if run.step >= run.config.planned_steps]
    if spent:
        lines.append(f"Already finished: {labels(spent)}; a larger --total-steps goes on from there, --clobber starts over")
    if by_rule:
        further = "other values of the --stop flags, or off, go on from there"
        lines.append(f"Already finished by rule: {labels(by_rule)}; {further}, --clobber starts over")
    if resumed:
        lines.append(f"Resuming {labels(resumed)}; --clobber starts over")
    if len(done) < len(runs):
        limit = f"as many at a time as {cores} cores carry; --jobs N sets a number" if jobs is None else f"{jobs} at a time"
        lines.append(f"A process for each run, {limit}; the output of seedN is in seedN.log beside its folder")
    return "\n".join(lines)


def labels(runs: Sequence[PlannedRun]) -> str:
    """Return which runs these are, or how many if they are too many to list."""
    if len(runs) > 1 and all(run.label.startswith("seed ") for run in runs):
        return f"seeds {ranges(sorted(run.config.seed for run in runs))}"
    return ", ".join(run.label.replace("  ", " ") for run in runs) if len(runs) <= MOST_LABELS else f"{len(runs)} runs"


def outcome_line(outcome: Outcome, duration: str) -> str:
    """Return the line that is printed when a run ends."""
    if outcome.state == "failed":
        return f"{outcome.run.label}  failed: {outcome.reason}"
    done = "done" if outcome.step >= outcome.run.config.planned_steps else f"done at step {outcome.step:,} by rule"
    text = done if outcome.state == "finished" else f"stopped and saved at step {outcome.step:,}"
    return f"{outcome.run.label}  {text}  {scores(outcome.mean_return, outcome.success_rate)}  {duration}"


def closing(outcomes: Sequence[Outcome], clobber: bool) -> str:
    """Return the summary over seeds, what is left to do, and the next commands."""
    texts = [seed_table(summarize_seeds(outcomes)), left_to_do(outcomes, clobber), next_commands(outcomes)]
    return "\n".join(filter(None, texts))


def seed_table(summaries: Sequence[SeedSummary]) -> str:
    if not summaries:
        return ""
    told = any(one.success_rate is not None for one in summaries)
    rows = [["name", "seeds", "return", "95% interval", "success rate" * told]]
    for one in summaries:
        interval = f"{format_number(one.low)} to {format_number(one.high)}" if len(one.seeds) > 1 else "- (one seed)"
        success = "-" * told if one.success_rate is None else f"{one.success_rate:.0%}"
        rows.append([one.name, ranges(one.seeds), format_number(one.mean), interval, success])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["", "Return of the last 100 training episodes, mean over seeds", *lines, ""])


def left_to_do(outcomes: Sequence[Outcome], clobber: bool) -> str:
    """Return a line about runs that can be resumed, and one about those that have not begun."""
    stopped = [outcome.run for outcome in outcomes if outcome.state == "stopped"]
    waiting = [outcome.run for outcome in outcomes if outcome.state == "waiting"]
    command = "the same command without --clobber" if clobber else "the same command"
    lines = []
    if stopped or waiting:
        parts = [f"stopped {labels(stopped)}" * bool(stopped), f"not begun {labels(waiting)}" * bool(waiting)]
        lines.append(f"Not finished: {'; '.join(filter(None, parts))}. {command.capitalize()} resumes.")
    kept = [run for run in waiting if clobber and run.folder.latest_checkpoint() is not None]
    if kept:
        lines.append(f"--clobber has not reached {labels(kept)}: there are still the earlier runs.")
    return "\n".join(lines)


def next_commands(outcomes: Sequence[Outcome]) -> str:
    """Return the commands that plot and compare the runs."""
    paths_of = [(outcome.run, outcome.run.folder.metrics_path) for outcome in outcomes]
    begun = [run for run, path in paths_of if path.exists() and path.stat().st_size]  # a run that fails at once logs nothing
    if not begun:
        return ""
    paths = " ".join(shlex.quote(str(path)) for path in shortest_paths([run.folder.path for run in begun]))
    return f"Next: proxrl plot {paths}\n      proxrl compare {paths}"


def shortest_paths(runs: Sequence[Path]) -> list[Path]:
    """Return the fewest folders that hold these runs and no others: of all names, of all seeds of a name, or of single runs."""
    wanted = set(runs)
    env_folder = runs[0].parent.parent
    names = list(dict.fromkeys(run.parent for run in runs))
    if len(names) > 1 and runs_in(env_folder, "*/*/config.toml") <= wanted:
        return [env_folder]
    whole = {name: runs_in(name, "*/config.toml") <= wanted for name in names}
    return list(dict.fromkeys(run.parent if whole[run.parent] else run for run in runs))


def runs_in(folder: Path, pattern: str) -> set[Path]:
    return {path.parent for path in folder.glob(pattern)}


def failures(outcomes: Sequence[Outcome]) -> ProxRLError | None:
    """Return an error that names the runs that failed, with the reason of each; None if none has failed."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if not failed:
        return None
    by_reason: dict[str, list[Outcome]] = {}
    for outcome in failed:
        by_reason.setdefault(outcome.reason, []).append(outcome)
    reasons = "; ".join(f"{labels([outcome.run for outcome in group])}: {reason}" for reason, group in by_reason.items())
    error = ProxRLError(f"{len(failed)} of {len(outcomes)} runs failed; {reasons}")
    for group in by_reason.values():
        if group[0].traceback:
            error.add_note(f"in {group[0].run.label}:\n{group[0].traceback}")
    return error
