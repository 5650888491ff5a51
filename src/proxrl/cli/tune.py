"""`proxrl tune`: any setting may be fixed by the flag that it has in `proxrl train`."""

import argparse
from pathlib import Path
from typing import Any

from proxrl.cli.parser import Parser
from proxrl.config import Config
from proxrl.config.flags import add_settings

USAGE = "proxrl tune ENV [flags]"
DESCRIPTION = """\
Look for better settings: train many short trials, give up the poor ones early, and write the best settings as a preset.
The same command again goes on where the study was left, up to --trials.

  proxrl tune CartPole-v1
  proxrl tune HalfCheetah-v5 --trials 100 --workers 4 --total-steps 200000
  proxrl tune my_package:make_env --env-kwargs difficulty=3 --gamma 0.98     (gamma stays fixed)

What is varied is in the table [search] of the environment's preset, with reasons; --search changes it (docs/tune.md).
"""
# The study has its own meaning for them, or sets them for each trial.
OWN = ("total_steps", "seed", "name", "world")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("env", metavar="ENV", help=Config.__dataclass_fields__["env"].metadata["help"])
    study = parser.add_argument_group("study")
    study.add_argument(
        "--trials", type=int, default=50, metavar="N", help="trials in all, earlier sessions included (default 50)"
    )
    study.add_argument("--workers", type=int, default=1, metavar="N", help="trials trained at once, a process each (default 1)")
    study.add_argument("--total-steps", metavar="N", help="agent steps of each run of a trial (default a fifth of the preset's)")
    study.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="runs of each trial, which scores their mean (default 1)"
    )
    study.add_argument("--seed", default=1, metavar="N", help="fixes what is drawn; trials train it and those after (default 1)")
    study.add_argument("--timeout", type=float, metavar="SECONDS", help="stop after so long; the same command goes on")
    study.add_argument(
        "--prune", action=argparse.BooleanOptionalAction, default=True, help="give up trials below the median (default on)"
    )
    study.add_argument("--preset", metavar="NAME", help="settings to start from: a preset's name or a .toml file")
    study.add_argument("--search", type=Path, metavar="FILE", help="a .toml file whose table [search] changes what is varied")
    study.add_argument("--study", default="tune", metavar="NAME", help="name of the study: studies/<env>/<study> (default tune)")
    study.add_argument(
        "--studies-dir", type=Path, default=Path("studies"), metavar="DIR", help="folder of all studies (default studies)"
    )
    study.add_argument(
        "--out", type=Path, metavar="FILE", help="where the best preset goes (default best.toml in the study's folder)"
    )
    study.add_argument("--clobber", action="store_true", help="start over: delete an earlier study of this name and its runs")
    study.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_settings(parser, OWN)


def run(options: dict[str, Any]) -> int:
    from proxrl.tuning.run import tune

    options.pop("debug")
    tuned = tune(options.pop("env"), **options)
    return 0 if tuned.signal is None else 128 + tuned.signal
