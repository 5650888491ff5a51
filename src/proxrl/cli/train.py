"""`proxrl train`: one flag for each field of `Config`, and where the run is written."""

import argparse
import dataclasses
import faulthandler
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxrl.cli.arguments import add_runs_dir, add_trust
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection
from proxrl.config import Config
from proxrl.config.flags import add_settings
from proxrl.errors import ProxRLError
from proxrl.runs.changes import check_allowed
from proxrl.world.launcher import launched

if TYPE_CHECKING:
    from proxrl.config.resolve import Resolved

DESCRIPTION = """\
Train PPO on an environment. Running the same command again resumes the run.

  proxrl train CartPole-v1
  proxrl train HalfCheetah-v4 --num-envs 8 --rollout-steps 256 --seed 2
  proxrl train my_package:make_env --env-kwargs difficulty=3
  proxrl train CartPole-v1 --seeds 1-5 --sweep learning_rate=1e-4,3e-4    (see docs/many_runs.md)
  mpirun -n 8 proxrl train HalfCheetah-v4 --num-envs 64    (see docs/distributed.md)

Settings that are not given come from the preset of the environment's family, otherwise from the
defaults below; --print-config shows them with their sources. Where a SCHEDULE is accepted, a value
may change over the run, as in --clip linear:0.2:0.05 (docs/settings.md).
"""


def add_arguments(parser: Parser) -> None:
    """Add the settings of a run, and the flags that decide where and how it is written."""
    add_run_settings(parser)
    outside = parser.add_group("output")
    add_runs_dir(outside)
    outside.add_argument("--clobber", action="store_true", help="start over: delete the files of an earlier run of this name")
    outside.add_argument(
        "--allow-change",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="settings that may change when the run is resumed, such as learning_rate; the change is recorded",
    )
    outside.add_argument("--print-config", action="store_true", help="print every setting with its source, and exit")
    outside.add_argument("--wandb", action="store_true", help="also log to Weights & Biases")
    outside.add_argument(
        "--tensorboard", action=argparse.BooleanOptionalAction, default=True, help="log to TensorBoard (default on)"
    )
    outside.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_many_runs(parser)


def add_many_runs(parser: Parser) -> None:
    many = parser.add_group("many runs")
    many.add_argument(
        "--seeds", nargs="+", metavar="N", help="train several seeds, each in a process of its own: 1 2 3, 1-5, or both"
    )
    many.add_argument(
        "--sweep",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=X,X,...",
        help="train with each of these values of a setting; several settings make a grid",
    )
    many.add_argument("--jobs", type=int, metavar="N", help="runs trained at a time (default: as many as the cores carry)")


def add_run_settings(parser: Parser) -> None:
    """Add the arguments from which `resolve_settings` makes a complete Config."""
    parser.add_argument("env", metavar="ENV", nargs="?", help=Config.__dataclass_fields__["env"].metadata["help"])
    groups = add_settings(parser.add_group)
    groups["environment"].add_argument(
        "--envs-per-rank", type=int, metavar="N", help="environments of each rank, instead of --num-envs for all ranks"
    )
    sources = parser.add_group("where settings come from")
    sources.add_argument("--env", dest="env_flag", metavar="ENV", help="the environment, if it is not given as an argument")
    sources.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings; the config.toml of a run repeats that run"
    )
    sources.add_argument(
        "--preset",
        metavar="NAME",
        help="preset instead of the family's: a name, reference (published values) or a .toml file",
    )
    add_trust(sources)


def run(options: dict[str, Any]) -> int:
    names = ("runs_dir", "clobber", "quiet", "tensorboard", "wandb", "debug")
    allowed = check_allowed(options.pop("allow_change"))
    run_options, show_config = {name: options.pop(name) for name in names}, options.pop("print_config")
    seeds, sweeps, jobs = (options.pop(name) for name in ("seeds", "sweep", "jobs"))
    if allowed and (seeds is not None or sweeps):
        raise ProxRLError("--allow-change is for one run at a time; leave out --seeds and --sweep")
    if seeds is not None or sweeps:
        return run_many(options, run_options, (seeds, sweeps, jobs), show_config)
    if jobs is not None:
        raise ProxRLError("--jobs is for several runs: give --seeds or --sweep too")
    resolved = resolve_settings(options, None if run_options["clobber"] else run_options["runs_dir"])
    if show_config:
        from proxrl.envs.given import FirstMade

        if launched().rank == 0 or resolved.config.world == "solo":
            print_config(resolved.config, resolved.sources)
        if isinstance(resolved.env, FirstMade):
            resolved.env.close()  # the environment that was made to find out whether it is vectorized
        return 0
    # Imported here so that help, --print-config and mistyped flags answer at once, without waiting for torch.
    with without_garbage_collection():
        from proxrl.launch import RunOptions
        from proxrl.launch import run as run_training

    if not faulthandler.is_enabled():
        faulthandler.enable()  # a crash in the code of an environment or library then tells where it happened
    result = run_training(resolved.env, resolved.config, RunOptions(**run_options, allow_change=allowed))
    return 128 + result.signal if result.signal and not result.finished else 0


def run_many(
    options: dict[str, Any], run_options: dict[str, Any], many: tuple[list[str] | None, list[str], int | None], show_config: bool
) -> int:
    """Train the runs that --seeds and --sweep stand for, or with --print-config list them."""
    from proxrl.many_runs.plan import plan_runs

    (seeds, sweeps, jobs), runs_dir, clobber = many, run_options["runs_dir"], run_options["clobber"]
    run_options.pop("debug")

    def resolve_run(changes: dict[str, Any], look: bool) -> "Resolved":
        return resolve_settings({**options, **changes}, None if clobber else runs_dir, look)

    plan = plan_runs(resolve_run, list(options), seeds, sweeps, runs_dir, clobber)
    if show_config:
        print(f"# {len(plan.runs)} runs:")
        for one in plan.runs:
            state = "finished" if one.finished else f"resumes at step {one.step:,}" if one.step else "new"
            print(f"#   {one.folder.path}: {state}")
        print_config(plan.runs[0].config, plan.sources)
        return 0
    from proxrl.many_runs.run import ManyOptions, train_many

    signal = train_many(plan, ManyOptions(jobs=jobs, **run_options))
    return 0 if signal is None else 128 + signal


def resolve_settings(options: dict[str, Any], resume_from: Path | None, look: bool = True) -> "Resolved":
    """Return the complete settings, from the arguments of `add_run_settings`.

    `resume_from` is the folder of runs in which an earlier run would be resumed.
    """
    from proxrl.config.resolve import resolve
    from proxrl.runs.folder import earlier_config

    preset, file, envs_per_rank, trust = (options.pop(name) for name in ("preset", "config", "envs_per_rank", "trust"))
    envs = [env for env in (options.pop("env"), options.pop("env_flag")) if env is not None]
    if len(envs) > 1:
        raise ProxRLError(f"the environment is given twice, as {envs[0]} and by --env {envs[1]}; give it once")
    earlier = functools.partial(earlier_config, resume_from) if resume_from else None
    return resolve(envs[0] if envs else None, options, preset, earlier, file, envs_per_rank, look, trust)


def print_config(config: Config, sources: dict[str, str]) -> None:
    """Print every setting as TOML, with its source as a comment."""
    from proxrl.config.parse import toml_value

    rows = [
        (f"{spec.name} = {toml_value(getattr(config, spec.name))}", sources[spec.name]) for spec in dataclasses.fields(config)
    ]
    width = max(len(setting) for setting, _ in rows)
    for setting, source in rows:
        print(f"{setting:<{width}}  # {source}")
