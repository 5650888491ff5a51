"""Which settings are better? Scores of runs side by side, aggregated over environments and seeds by rliable.

A score of 0 is the return of the untrained policy, which is what a run's first episodes give; 1 is the published return of the
environment, the middle one of several, or where there is none the best mean among those compared. So environments with rewards
of any size can be put together.
"""

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxrl.errors import ProxRLError
from proxrl.report.curves import CONFIDENCE
from proxrl.report.plot import save_figure
from proxrl.report.published import Published, published, reference
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_runs, names_apart
from proxrl.runs.metrics import RETURN, read_lines
from proxrl.runs.status import Summary, summarise

DRAWS = 2000
AGGREGATES = {"iqm": "IQM", "mean": "mean", "optimality_gap": "optimality gap"}

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EnvResults:
    """One environment: what the contenders return there, and what 0 and 1 mean."""

    env: str
    returns: Mapping[str, Sequence[float]]  # one for each seed
    published: tuple[Published, ...]
    reference: Published | None  # the one of them that 1 stands for, where it is above 0
    zero: float | None
    one: float | None

    def scores(self, name: str) -> Scores:
        assert self.zero is not None
        assert self.one is not None
        return (np.array(self.returns[name]) - self.zero) / (self.one - self.zero)


@dataclass(frozen=True)
class Comparison:
    names: list[str]
    results: list[EnvResults]
    scored_by: str  # evaluation or training
    aggregates: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)  # aggregate → name → estimate
    improvement: Mapping[tuple[str, str], Estimate] = field(
        default_factory=dict
    )  # how often a run of one beats a run of the other
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        tasks = [
            {
                "env": task.env,
                "returns": dict(task.returns),
                "published": [entry._asdict() for entry in task.published],
                "reference": task.reference and task.reference._asdict(),
                "zero": task.zero,
                "one": task.one,
            }
            for task in self.results
        ]
        return {
            "scored_by": self.scored_by,
            "tasks": tasks,
            "aggregates": {key: {name: asdict(e) for name, e in found.items()} for key, found in self.aggregates.items()},
            "improvement": [{"of": a, "over": b, **asdict(estimate)} for (a, b), estimate in self.improvement.items()],
            "notes": self.notes,
        }


def compare(places: Sequence[str | Path], runs_dir: str | Path = RUNS_DIR) -> Comparison:
    """All runs at or below `places`: those of one name contend together, in every environment that they have been trained on."""
    found = contenders(places, runs_dir)
    names = list(found)
    runs = [run for by_env in found.values() for group in by_env.values() for run in group]
    evaluated = all(run.evaluated_score is not None for run in runs)
    notes = []
    if not evaluated and any(run.evaluated_score is not None for run in runs):
        notes.append("some runs have no evaluation of their last step, so all are compared by training return")
    unfinished = [str(run.folder.path) for run in runs if run.state != "finished"]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    tasks = []
    for env in dict.fromkeys(env for by_env in found.values() for env in by_env):
        groups = {name: found[name][env] for name in names if env in found[name]}
        returns = {name: _returns(group, evaluated) for name, group in groups.items() if _returns(group, evaluated)}
        if not returns:
            notes.append(f"{env}: no run has finished an episode yet")
            continue
        lengths = {name: max(run.step for run in group) for name, group in groups.items()}
        if len(set(lengths.values())) > 1:
            notes.append(f"{env}: trained for different times, {', '.join(f'{name} {n:,} steps' for name, n in lengths.items())}")
        tasks.append(EnvResults(env, returns, published(env), reference(env), *_scale(env, groups, returns)))
    silent = [name for name in names if not any(name in task.returns for task in tasks)]
    if silent:
        notes.append(f"left out, because no episode has finished yet: {', '.join(silent)}")
        names = [name for name in names if name not in silent]
    if not tasks:
        raise ProxRLError("no run there has finished an episode yet; 'proxrl train' writes returns as episodes end")
    comparison = Comparison(names, tasks, "evaluation" if evaluated else "training", notes=notes)
    return _with_aggregates(comparison)


def contenders(places: Sequence[str | Path], runs_dir: str | Path) -> dict[str, dict[str, list[Summary]]]:
    """name → environment → its runs. Where runs of one environment and name lie in several places, the folder of all
    environments is part of the name.
    """
    runs = [summarise(folder) for folder in find_runs(places, runs_dir)]
    apart = {name for _, name in names_apart((run.folder.path, run.env, run.name) for run in runs)}
    groups: dict[str, dict[str, list[Summary]]] = {}
    for run in runs:
        root = os.path.relpath(run.folder.path.resolve().parents[2]) if run.name in apart else ""
        label = f"{run.name} ({root})" if root else run.name
        groups.setdefault(label, {}).setdefault(run.env, []).append(run)
    return groups


def _returns(runs: Sequence[Summary], evaluated: bool) -> list[float]:
    """In the order of seeds; runs that have not finished an episode have none."""
    ordered = sorted(runs, key=lambda run: run.seed or 0)
    found = [run.evaluated_score if evaluated else run.mean_return for run in ordered]
    return [value for value in found if value is not None]


def _scale(
    env: str, groups: Mapping[str, Sequence[Summary]], returns: Mapping[str, Sequence[float]]
) -> tuple[float | None, float | None]:
    """What 0 and 1 stand for; None where nothing has been learnt that could be measured."""
    first = [value for group in groups.values() for run in group if (value := first_return(run.folder)) is not None]
    zero = float(np.mean(first)) if first else float("nan")
    best = max(float(np.mean(values)) for values in returns.values())
    stated = [entry.mean for entry in [reference(env)] if entry is not None]
    one = next((value for value in (*stated, best) if value > zero), None)
    return (zero, one) if one is not None else (None, None)


def first_return(folder: RunFolder) -> float | None:
    """Of the first episodes of a run: first weights are such that the first policy is nearly uniform."""
    return next((float(entry[RETURN]) for entry in read_lines(folder) if entry.get(RETURN) is not None), None)


def _with_aggregates(comparison: Comparison) -> Comparison:
    """Over the environments that all contenders share, and as many seeds as each of them has there."""
    names, notes = comparison.names, list(comparison.notes)
    shared = [task for task in comparison.results if task.one is not None and set(task.returns) == set(names)]
    left_out = [task.env for task in comparison.results if task not in shared]
    if left_out:
        notes.append(f"not in the aggregate, because a contender lacks it or learnt nothing: {', '.join(left_out)}")
    if not shared:
        return Comparison(names, comparison.results, comparison.scored_by, notes=notes)
    matrices: dict[str, Scores] = {}
    for name in names:
        seeds = min(len(task.returns[name]) for task in shared)
        matrices[name] = np.stack([task.scores(name)[:seeds] for task in shared], 1)
        if any(len(task.returns[name]) != seeds for task in shared):
            notes.append(f"{name}: {seeds} seeds of each environment are in the aggregate, as many as all have")
        if seeds == 1:
            notes.append(f"{name}: one seed, so the interval says nothing about others")
    library, metrics = _rliable()
    aggregates = {key: _estimates(library, matrices, getattr(metrics, f"aggregate_{key}")) for key in AGGREGATES}
    pairs = {(a, b): [matrices[a], matrices[b]] for a, b in itertools.combinations(names, 2)}
    improvement = _estimates(library, pairs, metrics.probability_of_improvement)
    return Comparison(names, comparison.results, comparison.scored_by, aggregates, improvement, notes)


def _estimates(library: Any, scores: Mapping[Any, Any], function: Any) -> dict[Any, Estimate]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about intervals of a single seed, which a note tells of
        points, intervals = library.get_interval_estimates(
            scores,
            lambda *given: np.array([function(*given)]),
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
    """The aggregates and the probabilities of improvement, each with its interval."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProxRLError("the chart needs matplotlib: pip install 'proxrl[compare]'") from None
    panels: list[tuple[str, dict[str, Estimate]]] = [
        (AGGREGATES[key], dict(found)) for key, found in comparison.aggregates.items()
    ]
    if comparison.improvement:
        panels.append(("probability of improvement", {f"{a} over {b}": e for (a, b), e in comparison.improvement.items()}))
    rows = max(len(found) for _, found in panels)
    figure = Figure(figsize=(3.4 * len(panels), 1.2 + 0.5 * rows), layout="constrained")
    for axes, (title, found) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for row, estimate in enumerate(found.values()):
            colour = f"C{row}"
            axes.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.5, color=colour, alpha=0.35)
            axes.plot([estimate.value] * 2, [row - 0.25, row + 0.25], color=colour, linewidth=3, solid_capstyle="butt")
        axes.set_yticks(range(len(found)), list(found))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        axes.margins(x=0.08)  # a mark at an end would be cut in half
        if title == "probability of improvement":
            axes.set_xlim(-0.04, 1.04)
            axes.axvline(0.5, color="grey", linewidth=1, linestyle=":")
    return save_figure(figure, out)
