"""`proxrl tune`: search for better settings. The flags of `proxrl train` fix settings."""

import argparse
from pathlib import Path
from typing import Any

from proxrl.cli.arguments import add_trust
from proxrl.cli.parser import Parser
from proxrl.config import Config
from proxrl.config.flags import add_settings

DESCRIPTION = """\
Search for better settings: train many short trials, prune the poor ones early, and write the best
settings as a preset. Running the same command again continues the study, up to --trials.

  proxrl tune CartPole-v1
  proxrl tune HalfCheetah-v5 --trials 100 --workers 4 --total-steps 200000
  proxrl tune my_package:make_env --env-kwargs difficulty=3 --gamma 0.98    (gamma is fixed)

The table [search] of the environment's preset says what is varied, and why; --search changes it
(docs/tune.md).
"""
# The study defines these flags itself, or sets them for each trial.
SET_BY_STUDY = ("total_steps", "seed", "name", "world")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("env", metavar="ENV", help=Config.__dataclass_fields__["env"].metadata["help"])
    study = parser.add_group("study")
    study.add_argument(
        "--trials", type=int, default=50, metavar="N", help="number of trials, including those of earlier sessions (default 50)"
    )
    study.add_argument(
        "--workers", type=int, default=1, metavar="N", help="trials trained at the same time, one process each (default 1)"
    )
    study.add_argument("--total-steps", metavar="N", help="agent steps of each run of a trial (default: a fifth of the preset's)")
    study.add_argument("--seeds", type=int, default=1, metavar="N", help="runs per trial; the score is their mean (default 1)")
    study.add_argument("--seed", default=1, metavar="N", help="seed of the search and of the first run of each trial (default 1)")
    study.add_argument("--timeout", type=float, metavar="SECONDS", help="stop after this time; the same command continues")
    study.add_argument(
        "--prune", action=argparse.BooleanOptionalAction, default=True, help="stop trials below the median early (default on)"
    )
    study.add_argument(
        "--preset",
        metavar="NAME",
        help="preset instead of the family's: a name, reference (published values) or a .toml file",
    )
    study.add_argument("--search", type=Path, metavar="FILE", help=".toml file whose table [search] changes what is varied")
    study.add_argument(
        "--study", default="tune", metavar="NAME", help="name of the study, kept in studies/<env>/<name> (default tune)"
    )
    study.add_argument(
        "--studies-dir", type=Path, default=Path("studies"), metavar="DIR", help="folder of all studies (default studies)"
    )
    study.add_argument(
        "--out", type=Path, metavar="FILE", help="file for the best preset (default: best.toml in the study's folder)"
    )
    study.add_argument("--clobber", action="store_true", help="start over: delete an earlier study of this name and its runs")
    add_trust(study)
    study.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_settings(parser.add_group, SET_BY_STUDY)


def run(options: dict[str, Any]) -> int:
    from proxrl.tuning.run import tune

    options.pop("debug")
    tuned = tune(options.pop("env"), **options)
    return 0 if tuned.signal is None else 128 + tuned.signal
