"""`proxrl train`: flags are made from the fields of Config, so there is one list of settings."""

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxrl.cli.parser import Parser, add_runs_dir
from proxrl.config import Config
from proxrl.config.flags import add_settings
from proxrl.errors import ProxRLError
from proxrl.world.launcher import launched

if TYPE_CHECKING:
    from proxrl.config.resolve import Resolved

USAGE = "proxrl train ENV [flags]"
DESCRIPTION = """\
Train PPO on an environment. The same command again resumes the run.

  proxrl train CartPole-v1
  proxrl train HalfCheetah-v4 --num-envs 8 --rollout-steps 256 --seed 2
  proxrl train my_package:make_env --env-kwargs difficulty=3
  mpirun -n 8 proxrl train HalfCheetah-v4 --num-envs 64     (srun and torchrun too: docs/distributed.md)

Coefficients may follow a schedule, such as --clip linear:0.2:0.05 (docs/settings.md).
Values not given come from the preset of the environment's family; --print-config shows them and their sources.
"""


def add_arguments(parser: Parser) -> None:
    """The settings, and what is not part of what a run is."""
    add_run_settings(parser)
    outside = parser.add_argument_group("output")
    add_runs_dir(outside)
    outside.add_argument("--clobber", action="store_true", help="start over: delete what an earlier run of this name wrote")
    outside.add_argument("--print-config", action="store_true", help="print every setting with its source, and stop")
    outside.add_argument("--wandb", action="store_true", help="log to Weights & Biases too")
    outside.add_argument(
        "--tensorboard", action=argparse.BooleanOptionalAction, default=True, help="log to TensorBoard (default on)"
    )
    outside.add_argument("--quiet", action="store_true", help="print nothing but errors")


def add_run_settings(parser: Parser) -> None:
    """What `resolve_settings` makes a complete Config of."""
    parser.add_argument("env", metavar="ENV", nargs="?", help=Config.__dataclass_fields__["env"].metadata["help"])
    groups = add_settings(parser)
    groups["environment"].add_argument(
        "--envs-per-rank", type=int, metavar="N", help="environments of each rank, instead of --num-envs of all"
    )
    sources = parser.add_argument_group("where settings come from")
    sources.add_argument("--env", dest="env_flag", metavar="ENV", help="the environment, if not given as the first word")
    sources.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to start from; the config.toml of a run repeats it"
    )
    sources.add_argument("--preset", metavar="NAME", help="settings to start from: a preset's name or a .toml file")


def run(options: dict[str, Any]) -> int:
    # Imported here so that help and mistyped flags answer at once, without waiting for torch.
    from proxrl.launch import run as run_training

    names = ("runs_dir", "clobber", "print_config", "wandb", "tensorboard", "quiet", "debug")
    outside = {name: options.pop(name) for name in names}
    env, resolved = resolve_settings(options, None if outside["clobber"] else outside["runs_dir"])
    if outside.pop("print_config"):
        if launched().rank == 0 or resolved.config.world == "solo":
            print_config(resolved.config, resolved.sources)
        return 0
    result = run_training(env, resolved.config, **outside)
    return 128 + result.signal if result.signal and not result.finished else 0


def resolve_settings(options: dict[str, Any], resume_from: Path | None) -> "tuple[str, Resolved]":
    """The environment and the complete settings, from what `add_run_settings` has read; a run below `resume_from` goes on."""
    from proxrl.config.resolve import resolve
    from proxrl.runs.folder import earlier_config

    sources = [options.pop(name) for name in ("preset", "config", "envs_per_rank")]
    words = [word for word in (options.pop("env"), options.pop("env_flag")) if word is not None]
    if len(words) > 1:
        raise ProxRLError(f"the environment is given twice, as {words[0]} and by --env {words[1]}; give it once")
    preset, file, envs_per_rank = sources
    earlier = functools.partial(earlier_config, resume_from) if resume_from else None
    resolved = resolve(words[0] if words else None, options, preset, earlier, file, envs_per_rank)
    return words[0] if words else resolved.config.env, resolved


def print_config(config: Config, sources: dict[str, str]) -> None:
    from proxrl.config.parse import toml_value

    rows = [
        (f"{spec.name} = {toml_value(getattr(config, spec.name))}", sources[spec.name]) for spec in dataclasses.fields(config)
    ]
    width = max(len(setting) for setting, _ in rows)
    for setting, source in rows:
        print(f"{setting:<{width}}  # {source}")
