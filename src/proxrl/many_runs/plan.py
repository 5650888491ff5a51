"""Which runs a command stands for: all settings are resolved and checked before the first run starts."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from proxrl.config import Config
from proxrl.config.resolve import Resolved
from proxrl.envs.given import FirstMade
from proxrl.errors import CollectiveError, ProxRLError
from proxrl.many_runs.grid import Point, check_count, parse_seeds, parse_sweeps, point_label, ranges, run_name
from proxrl.runs.folder import RunFolder, check_resumable, run_folder
from proxrl.runs.stop_rules import StopRules
from proxrl.world.launcher import launched


@dataclass(frozen=True)
class PlannedRun:
    """One of several runs."""

    config: Config
    folder: RunFolder
    label: str  # what differs from the other runs
    finished: bool  # before this command
    step: int  # at which it begins

    @property
    def log(self) -> Path:
        """The file for its output, beside its folder."""
        return self.folder.path.with_name(f"{self.folder.path.name}.log")


@dataclass(frozen=True)
class Plan:
    """All runs of a command, in the order in which they start."""

    runs: tuple[PlannedRun, ...]
    sources: dict[str, str]  # where each value of the first run comes from


# Returns the complete settings of a run, given those that differ, and whether to look if a callable is vectorized.
ResolveRun: TypeAlias = Callable[[dict[str, Any], bool], Resolved]


def plan_runs(
    resolve_run: ResolveRun,
    settings: Sequence[str],
    seeds: Sequence[str] | None,
    sweeps: Sequence[str],
    runs_dir: Path,
    clobber: bool,
) -> Plan:
    """Return the runs that --seeds and --sweep stand for. `settings` are the names of those that the command gives by flag."""
    check_launch(settings)
    if seeds is not None and "seed" in settings:
        raise ProxRLError("--seed and --seeds both set the seed; leave one of them out")
    points = parse_sweeps(sweeps, settings)
    seed_changes = [{}] if seeds is None else [{"seed": seed} for seed in parse_seeds(seeds)]
    check_count(len(points) * len(seed_changes))
    runs: list[PlannedRun] = []
    seen: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    # All settings of the first seed come first: they can be compared early.
    for changes in seed_changes:
        for point in points:
            resolved = resolve_point(resolve_run, point, changes, seen)
            label = run_label(point, resolved.config.seed, len(seed_changes))
            runs.append(plan_run(resolved.config, label, runs_dir, clobber))
            sources = sources or resolved.sources
    return Plan(tuple(runs), {**sources, **swept_sources(points, [run.config.seed for run in runs], seeds is not None)})


def check_launch(settings: Sequence[str]) -> None:
    """Raise an error if several processes run this command, or if ranks are asked for."""
    advice = "each of several runs is a process of its own"
    if launched().size > 1:
        raise CollectiveError(
            f"{advice}: start --seeds and --sweep without {launched().launcher}, or train one run at a time with --seed"
        )
    if "world" in settings:
        raise ProxRLError(f"{advice}: leave out --world beside --seeds and --sweep")


def resolve_point(resolve_run: ResolveRun, point: Point, changes: dict[str, Any], seen: dict[str, dict[str, Any]]) -> Resolved:
    """Return the settings of one run, with its name.

    `seen` are the settings that the environments of a point turned out to have. They are the same for all seeds, so that one
    environment is made for each point.
    """
    key = point_label(point)
    try:
        plain = {**changes, **{choice.setting: choice.value for choice in point if choice.key is None}}
        base = resolve_run(plain, False).config
        tables: dict[str, dict[str, Any]] = {}
        for choice in point:
            if choice.key is not None:
                tables.setdefault(choice.setting, dict(getattr(base, choice.setting)))[choice.key] = choice.value
        # Resolved again, because the name decides which earlier run is resumed.
        resolved = resolve_run({**plain, **tables, "name": run_name(base.name, point), **seen.get(key, {})}, key not in seen)
    except ProxRLError as error:
        if not point:
            raise
        raise ProxRLError(f"--sweep {key}: {error}") from error
    if isinstance(resolved.env, FirstMade):
        resolved.env.close()
        config = resolved.config
        seen[key] = {"num_envs": config.num_envs, "vector": config.vector} if resolved.env.vectorized else {}
    return resolved


def run_label(point: Point, seed: int, seeds: int) -> str:
    """Return what tells a run apart from the others of its command."""
    return "  ".join(filter(None, [point_label(point), f"seed {seed}" if seeds > 1 or not point else ""]))


def plan_run(config: Config, label: str, runs_dir: Path, clobber: bool) -> PlannedRun:
    """Look at the folder of a run: raise an error if the run can't be resumed, and see whether it is finished."""
    folder = RunFolder(run_folder(runs_dir, config.env, config.name, config.seed))
    if folder.is_locked():
        raise ProxRLError(f"another process is training in {folder.path}; wait for it, or use another --name")
    new = PlannedRun(config, folder, label, finished=False, step=0)
    if new.log.is_symlink():  # in a folder of somebody else it could lead to any file of this user
        raise ProxRLError(f"{new.log} is a link, but output is written to it; delete it, or use another --name")
    if clobber or folder.latest_checkpoint() is None:
        return new
    try:
        check_resumable(folder.unchecked_config(), config, folder.config_path)
    except ProxRLError as error:
        raise ProxRLError(f"{folder.path}: {error}") from error
    step, rules = folder.checkpoint_step() or 0, StopRules.restored(folder.checkpoint_state(), config)
    finished = step >= config.planned_steps or rules.reason(config) is not None
    return dataclasses.replace(new, finished=finished, step=step)


def swept_sources(points: Sequence[Point], seeds: Sequence[int], several_seeds: bool) -> dict[str, str]:
    """Return what --print-config says about the settings that differ."""
    sources = {"name": "named by what differs"} if points != [()] else {}
    for column in zip(*points, strict=True):
        values = ", ".join(dict.fromkeys(choice.label.partition("=")[2] for choice in column))
        entry = "" if column[0].key is None else f"{column[0].key}: "
        sources[column[0].setting] = f"sweep: {entry}{values}"
    if several_seeds:
        sources["seed"] = f"seeds: {ranges(sorted(set(seeds)))}"
    return sources
