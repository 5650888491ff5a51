"""Compare runs under different names: returns, and scores aggregated over environments and seeds by rliable.

A score of 0 is the return of the untrained policy, measured by a run's first episodes. A score of 1 is the published return of
the environment (the median of several), or else the best mean among the compared runs. So environments with rewards of any scale
can be aggregated.
"""

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxrl.errors import ProxRLError
from proxrl.report.curves import CONFIDENCE, DRAWS
from proxrl.report.plot import save_figure
from proxrl.report.published import Published, published, reference
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_runs, names_apart
from proxrl.runs.metrics import RETURN, read_lines
from proxrl.runs.status import Summary, summarize

AGGREGATES = {"iqm": "IQM", "mean": "mean", "optimality_gap": "optimality gap"}

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EnvResults:
    """The returns of all names in one environment, and the returns that score 0 and 1."""

    env: str
    returns: Mapping[str, Sequence[float]]  # name → one return per seed
    published: tuple[Published, ...]
    reference: Published | None  # the published return that scores 1, if it is above `zero`
    zero: float | None
    one: float | None
    success_rates: Mapping[str, Sequence[float]] = field(default_factory=dict)  # name → one rate per seed, if info tells

    def scores(self, name: str) -> Scores:
        """Return the scores of a name, one per seed."""
        assert self.zero is not None
        assert self.one is not None
        return (np.array(self.returns[name]) - self.zero) / (self.one - self.zero)


@dataclass(frozen=True)
class Comparison:
    """Everything that `proxrl compare` prints and draws."""

    names: list[str]
    results: list[EnvResults]
    scored_by: str  # evaluation or training
    aggregates: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)  # aggregate → name → estimate
    # (name, other name) → the probability that a run of the first has a higher score than a run of the second
    improvement: Mapping[tuple[str, str], Estimate] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        tasks = [
            {
                "env": result.env,
                "returns": dict(result.returns),
                "published": [entry._asdict() for entry in result.published],
                "reference": result.reference and result.reference._asdict(),
                "zero": result.zero,
                "one": result.one,
                "success_rates": dict(result.success_rates),
            }
            for result in self.results
        ]
        return {
            "scored_by": self.scored_by,
            "tasks": tasks,
            "aggregates": {key: {name: asdict(e) for name, e in by_name.items()} for key, by_name in self.aggregates.items()},
            "improvement": [{"of": a, "over": b, **asdict(estimate)} for (a, b), estimate in self.improvement.items()],
            "notes": self.notes,
        }


def compare(runs: Sequence[str | Path], runs_dir: str | Path = RUNS_DIR) -> Comparison:
    """Compare the names of all runs that `runs` stand for, see `find_runs`, in every environment on which they were trained."""
    groups = group_runs(runs, runs_dir)
    names = list(groups)
    summaries = [summary for by_env in groups.values() for group in by_env.values() for summary in group]
    evaluated = all(summary.evaluated_score is not None for summary in summaries)
    notes = _notes_on_runs(summaries, evaluated)
    results = []
    for env in dict.fromkeys(env for by_env in groups.values() for env in by_env):
        by_name = {name: groups[name][env] for name in names if env in groups[name]}
        returns = {name: _returns(group, evaluated) for name, group in by_name.items() if _returns(group, evaluated)}
        if not returns:
            notes.append(f"{env}: no run has finished an episode yet")
            continue
        steps = {name: max(run.step for run in group) for name, group in by_name.items()}
        if len(set(steps.values())) > 1:
            trained = ", ".join(f"{name} {count:,} steps" for name, count in steps.items())
            notes.append(f"{env}: trained for different numbers of steps: {trained}")
        success_rates = {name: rates for name, group in by_name.items() if (rates := _success_rates(group, evaluated))}
        scale = _scale(env, by_name, returns)
        results.append(EnvResults(env, returns, published(env), reference(env), *scale, success_rates))
    if not results:
        raise ProxRLError("no run there has finished an episode yet; 'proxrl train' writes returns as episodes end")
    without_returns = [name for name in names if not any(name in result.returns for result in results)]
    if without_returns:
        notes.append(f"omitted because no episode has finished yet: {', '.join(without_returns)}")
        names = [name for name in names if name not in without_returns]
    return _with_aggregates(Comparison(names, results, "evaluation" if evaluated else "training", notes=notes))


def _notes_on_runs(runs: Sequence[Summary], evaluated: bool) -> list[str]:
    notes = []
    if not evaluated and any(run.evaluated_score is not None for run in runs):
        notes.append("some runs have no evaluation of their last step, so all are compared by training return")
    unfinished = [str(run.folder.path) for run in runs if run.state != "finished"]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    return notes


def group_runs(runs: Sequence[str | Path], runs_dir: str | Path) -> dict[str, dict[str, list[Summary]]]:
    """Return name → environment → runs. Runs of one environment and name in several folders get their root folder in the name."""
    summaries = [summarize(folder) for folder in find_runs(runs, runs_dir)]
    ambiguous = {name for _, name in names_apart((run.folder.path, run.env, run.name) for run in summaries)}
    groups: dict[str, dict[str, list[Summary]]] = {}
    for run in summaries:
        root = os.path.relpath(run.folder.path.resolve().parents[2]) if run.name in ambiguous else ""
        label = f"{run.name} ({root})" if root else run.name
        groups.setdefault(label, {}).setdefault(run.env, []).append(run)
    return groups


def _returns(runs: Sequence[Summary], evaluated: bool) -> list[float]:
    """Return the returns of the runs that have finished an episode, ordered by seed."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    returns = [run.evaluated_score if evaluated else run.mean_return for run in ordered]
    return [value for value in returns if value is not None]


def _success_rates(runs: Sequence[Summary], evaluated: bool) -> list[float]:
    """Return the success rates of the runs whose info tells, ordered by seed."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    rates = [run.evaluated_success_rate if evaluated else run.success_rate for run in ordered]
    return [rate for rate in rates if rate is not None]


def _scale(
    env: str, groups: Mapping[str, Sequence[Summary]], returns: Mapping[str, Sequence[float]]
) -> tuple[float | None, float | None]:
    """Return the returns that score 0 and 1, or None for both if no return is above that of the untrained policy."""
    first = [value for group in groups.values() for run in group if (value := first_return(run.folder)) is not None]
    zero = float(np.mean(first)) if first else float("nan")
    best = max(float(np.mean(values)) for values in returns.values())
    stated = [entry.mean for entry in [reference(env)] if entry is not None]
    one = next((value for value in (*stated, best) if value > zero), None)
    return (zero, one) if one is not None else (None, None)


def first_return(folder: RunFolder) -> float | None:
    """Return the return of a run's first episodes, whose policy is nearly uniform because of the initial weights."""
    return next((float(entry[RETURN]) for entry in read_lines(folder) if entry.get(RETURN) is not None), None)


def _with_aggregates(comparison: Comparison) -> Comparison:
    """Add the aggregates over the environments that all names share, and over as many seeds as a name has in each of them."""
    names, notes = comparison.names, list(comparison.notes)
    shared = [result for result in comparison.results if result.one is not None and set(result.returns) == set(names)]
    omitted = [result.env for result in comparison.results if result not in shared]
    if omitted:
        notes.append(f"not in the aggregates, because a name was not trained there or nothing was learned: {', '.join(omitted)}")
    if not shared:
        return replace(comparison, notes=notes)
    scores: dict[str, Scores] = {}  # name → [seeds, environments]
    for name in names:
        seeds = min(len(result.returns[name]) for result in shared)
        scores[name] = np.stack([result.scores(name)[:seeds] for result in shared], 1)
        if any(len(result.returns[name]) != seeds for result in shared):
            number = f"{seeds} seed{'s' * (seeds > 1)}"
            notes.append(f"{name}: the aggregates use {number} per environment, as many as every environment has")
        if seeds == 1:
            notes.append(f"{name}: only one seed, so its intervals do not show the variation between seeds")
    library, metrics = _rliable()
    aggregates = {key: _estimates(library, scores, getattr(metrics, f"aggregate_{key}")) for key in AGGREGATES}
    pairs = {(a, b): [scores[a], scores[b]] for a, b in itertools.combinations(names, 2)}
    improvement = _estimates(library, pairs, metrics.probability_of_improvement)
    return replace(comparison, aggregates=aggregates, improvement=improvement, notes=notes)


def _estimates(library: Any, scores: Mapping[Any, Any], function: Any) -> dict[Any, Estimate]:
    """Return `function` of each entry of `scores`, with its stratified bootstrap interval."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about intervals of a single seed, which have a note of their own
        points, intervals = library.get_interval_estimates(
            scores,
            lambda *matrices: np.array([function(*matrices)]),
            reps=DRAWS,
            confidence_interval_size=CONFIDENCE,
            random_state=np.random.RandomState(0),
        )
    return {key: Estimate(float(points[key][0]), *(float(edge[0]) for edge in intervals[key])) for key in points}


def _rliable() -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from rliable import library, metrics
        except ImportError:
            raise ProxRLError("comparing needs rliable: pip install 'proxrl[compare]'") from None
    return library, metrics


def chart(comparison: Comparison, out: Path) -> Path:
    """Draw the aggregates and the probabilities of improvement with their intervals, and return the path of the file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("the chart needs matplotlib: pip install 'proxrl[compare]'") from None
    panels: list[tuple[str, dict[str, Estimate]]] = [
        (AGGREGATES[key], dict(by_name)) for key, by_name in comparison.aggregates.items()
    ]
    if comparison.improvement:
        panels.append(("probability of improvement", {f"{a} over {b}": e for (a, b), e in comparison.improvement.items()}))
    rows = max(len(estimates) for _, estimates in panels)
    figure = Figure(figsize=(3.4 * len(panels), 1.2 + 0.5 * rows), layout="constrained")
    for axes, (title, estimates) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row, estimate in enumerate(estimates.values()):
            color = f"C{row}"
            axes.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.5, color=color, alpha=0.35)
            axes.plot([estimate.value] * 2, [row - 0.25, row + 0.25], color=color, linewidth=3, solid_capstyle="butt")
        axes.set_yticks(range(len(estimates)), list(estimates))
        axes.set_ylim(len(estimates) - 0.4, -0.6)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        # Bars keep the axis from extending beyond their left end, and a mark there would be cut in half.
        axes.use_sticky_edges = False
        axes.margins(x=0.08)
        if title == "probability of improvement":
            axes.set_xlim(-0.04, 1.04)
            axes.axvline(0.5, color="gray", linewidth=1, linestyle=":")
    return save_figure(figure, out)
