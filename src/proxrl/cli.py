"""The command line: words in, calls out. Flags are made from the fields of Config, so there is one list of settings."""

import argparse
import contextlib
import dataclasses
import difflib
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from proxrl import __version__
from proxrl.config import OFF, Config, choices_of, field_types, flag
from proxrl.errors import ProxRLError
from proxrl.settings import parse_value
from proxrl.world.launcher import is_for_this_rank_to_tell, launched

TRAIN_HELP = """\
Train PPO on an environment. The same command again resumes the run.

  proxrl train CartPole-v1
  proxrl train HalfCheetah-v4 --num-envs 8 --rollout-steps 256 --seed 2
  proxrl train my_package:make_env --env-kwargs difficulty=3
  mpirun -n 8 proxrl train HalfCheetah-v4 --num-envs 64     (srun and torchrun too: docs/distributed.md)

Coefficients may follow a schedule, such as --clip linear:0.2:0.05 (docs/settings.md).
Values not given come from the preset of the environment's family; --print-config shows them and their sources.
"""


class Parser(argparse.ArgumentParser):
    """Answers a wrong word with one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise ProxRLError(f"{message} ('{self.prog} --help' lists what there is)")

    def check_flags(self, words: Sequence[str]) -> None:
        """Name the nearest flag for one that does not exist; argparse would only say that it does not."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            name = word.partition("=")[0]
            if word.startswith("--") and name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                raise ProxRLError(f"there is no flag {name}{hint} ('{self.prog} --help' lists them)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Says `--[no-]flag` once and `KEY=VALUE ...` once, where argparse repeats itself."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(shutil.get_terminal_size().columns, 120))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return f"{action.metavar} ..." if action.nargs == "+" else super()._format_args(action, default_metavar)


def make_parser() -> tuple[Parser, dict[str, Parser]]:
    common: Any = {"formatter_class": HelpFormatter, "allow_abbrev": False}
    parser = Parser(prog="proxrl", description="Proximal Policy Optimization you can read in one sitting.", **common)
    parser.add_argument("--version", action="version", version=f"proxrl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    train = commands.add_parser(
        "train", help="train on an environment, or resume", usage="proxrl train ENV [flags]", description=TRAIN_HELP, **common
    )
    add_settings(train)
    evaluate = commands.add_parser(
        "eval",
        help="play episodes with a trained policy and report the return",
        description="Deterministic and stochastic return of a run, with frozen statistics and equal quotas per environment.",
        **common,
    )
    evaluate.add_argument("run", metavar="RUN", help="run folder, such as runs/CartPole-v1/ppo/seed1")
    evaluate.add_argument("--episodes", type=int, default=20, help="episodes of each kind (default 20)")
    evaluate.add_argument("--checkpoint", default="latest", help="latest, best or step-N (default latest)")
    evaluate.add_argument("--device", metavar="NAME", help="torch device (default: the run's)")
    evaluate.add_argument("--seed", type=int, help="of the episodes (default: from the run's seed)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    envs = commands.add_parser(
        "envs", help="families of environments and how to install them", description="What can be trained on.", **common
    )
    plot = commands.add_parser(
        "plot",
        help="draw learning curves",
        description="Learning curves of runs: a panel per environment, a line per name, the range over seeds as a band.",
        **common,
    )
    plot.add_argument("runs", metavar="RUN", nargs="+", help="run folders, or folders above them")
    plot.add_argument("--out", type=Path, default=Path("curves.png"), help="PNG, SVG or PDF file to write (default curves.png)")
    plot.add_argument("--metric", default="charts/episodic_return", help="what to draw (default charts/episodic_return)")
    check = commands.add_parser(
        "check",
        help="say what in an environment would spoil training",
        description="Play an environment at random, and say what would spoil PPO and what to change. Exit code 1: errors found.",
        **common,
    )
    check.add_argument("env", metavar="ENV", help="Gymnasium id or module:callable")
    check.add_argument("--env-kwargs", nargs="+", default=[], metavar="KEY=VALUE", help="arguments for the environment")
    check.add_argument("--episodes", type=int, default=10, metavar="N", help="episodes to play (default 10)")
    check.add_argument("--seed", type=int, default=1, metavar="N", help="of episodes and actions (default 1)")
    check.add_argument("--json", action="store_true", help="print JSON")
    for command in (train, evaluate, check, plot, envs):
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser, {"train": train, "eval": evaluate, "check": check, "plot": plot, "envs": envs}


def add_settings(parser: Parser) -> None:
    """One flag for each field of Config, under its group's heading, and those that are not part of what a run is."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    kinds = field_types()
    for spec in dataclasses.fields(Config):
        if spec.name == "env":
            parser.add_argument("env", metavar="ENV", nargs="?", help=spec.metadata["help"])
            continue
        heading = spec.metadata["group"]
        group = groups.setdefault(heading, parser.add_argument_group(heading) if heading not in groups else groups[heading])
        options: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS}
        kind, default = kinds[spec.name], spec.default
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif choices_of(kind):
            options |= {"choices": choices_of(kind), "metavar": "|".join(choices_of(kind))}
        else:
            kinds_of = {kind, *get_args(kind)}
            origins = {get_origin(option) for option in kinds_of}
            options["metavar"] = "KEY=VALUE" if dict in origins else "NAME" if kinds_of & {str, tuple[str, ...]} else "N"
            if origins & {tuple, dict}:
                options["nargs"] = "+"
            if dict in origins:
                options["action"] = "extend"  # given twice, both count
        group.add_argument(flag(spec.name), help=f"{spec.metadata['help']}{_shown_default(default)}", **options)
    groups["environment"].add_argument(
        "--envs-per-rank", type=int, metavar="N", help="environments of each rank, instead of --num-envs of all"
    )
    sources = parser.add_argument_group("where settings come from")
    sources.add_argument("--env", dest="env_flag", metavar="ENV", help="the environment, if not given as the first word")
    sources.add_argument(
        "--config", type=Path, metavar="FILE", help="settings to start from; the config.toml of a run repeats it"
    )
    sources.add_argument("--preset", metavar="NAME", help="settings to start from: a preset's name or a .toml file")
    sources.add_argument("--print-config", action="store_true", help="print every setting with its source, and stop")
    outside = parser.add_argument_group("output")
    outside.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="folder of all runs (default runs)")
    outside.add_argument("--clobber", action="store_true", help="start over: delete what an earlier run of this name wrote")
    outside.add_argument("--wandb", action="store_true", help="log to Weights & Biases too")
    outside.add_argument(
        "--tensorboard", action=argparse.BooleanOptionalAction, default=True, help="log to TensorBoard (default on)"
    )
    outside.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _shown_default(default: Any) -> str:
    if isinstance(default, tuple):
        return f" (default {' '.join(map(str, default))})"
    if default is None:
        return f" (default {OFF})"
    if isinstance(default, bool):
        return f" (default {'on' if default else 'off'})"
    return "" if default is dataclasses.MISSING else f" (default {default})"


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 unexpected error, 2 bad input, 128 + n stopped by signal n."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except ProxRLError as error:
        if is_solo(words) or is_for_this_rank_to_tell(error):
            if debug:
                traceback.print_exc()
            rank = f"rank {launched().rank}: " if launched().rank else ""
            print(f"proxrl: error: {rank}{' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("proxrl: interrupted; the last checkpoint is as it was", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; without this, Python would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        reason = " ".join(str(error).split())
        print(f"proxrl: unexpected {type(error).__name__}: {reason}; --debug shows where it came from", file=sys.stderr)
        return 1


def is_solo(words: Sequence[str]) -> bool:
    """Whether the ranks of a launcher are to train alone, each of them speaking for itself."""
    return "--world=solo" in words or ("--world", "solo") in itertools.pairwise(words)


def dispatch(words: Sequence[str]) -> int:
    parser, commands = make_parser()
    if not words:
        parser.print_help()
        return 0
    if words[0] in commands:
        commands[words[0]].check_flags(words[1:])
    options = vars(parser.parse_args(words))
    command = {"train": train, "eval": evaluate, "check": check, "plot": plot, "envs": envs}[options.pop("command")]
    return command(options)


def train(options: dict[str, Any]) -> int:
    # Imported here so that help and mistyped flags answer at once, without waiting for torch.
    from proxrl.launch import run
    from proxrl.resolve import resolve

    outside = {
        name: options.pop(name)
        for name in ("runs_dir", "clobber", "preset", "config", "print_config", "wandb", "tensorboard", "quiet", "debug")
    }
    envs_per_rank = options.pop("envs_per_rank")
    words = [word for word in (options.pop("env"), options.pop("env_flag")) if word is not None]
    if len(words) > 1:
        raise ProxRLError(f"the environment is given twice, as {words[0]} and by --env {words[1]}; give it once")
    env = words[0] if words else None
    resume_from = None if outside["clobber"] else outside["runs_dir"]
    resolved = resolve(env, options, outside["preset"], resume_from, outside["config"], envs_per_rank)
    if outside["print_config"]:
        if launched().rank == 0 or resolved.config.world == "solo":
            print_config(resolved.config, resolved.sources)
        return 0
    passed = {name: outside[name] for name in ("runs_dir", "clobber", "quiet", "tensorboard", "wandb", "debug")}
    result = run(env or resolved.config.env, resolved.config, **passed)
    return 128 + result.signal if result.signal and not result.finished else 0


def print_config(config: Config, sources: dict[str, str]) -> None:
    from proxrl.settings import toml_value

    rows = [
        (f"{spec.name} = {toml_value(getattr(config, spec.name))}", sources[spec.name]) for spec in dataclasses.fields(config)
    ]
    width = max(len(setting) for setting, _ in rows)
    for setting, source in rows:
        print(f"{setting:<{width}}  # {source}")


def evaluate(options: dict[str, Any]) -> int:
    from proxrl.evaluation import evaluate as evaluate_run

    scores = evaluate_run(
        options["run"],
        episodes=options["episodes"],
        seed=options["seed"],
        checkpoint=options["checkpoint"],
        device=options["device"],
    )
    if options["json"]:
        print(json.dumps({kind: score.summary() for kind, score in scores.items()}))
        return 0
    for kind, score in scores.items():
        low, high = min(score.returns), max(score.returns)
        spread = f"min {low:.2f}, max {high:.2f}, {len(score.returns)} episodes"
        print(f"{kind:<13}  return {score.mean:.2f} ± {score.deviation:.2f}  ({spread})")
    return 0


def check(options: dict[str, Any]) -> int:
    from proxrl.check import check as check_environment

    kwargs = parse_value("env_kwargs", options["env_kwargs"])
    # What the environment prints would make JSON unreadable.
    with contextlib.redirect_stdout(sys.stderr if options["json"] else sys.stdout):
        report = check_environment(options["env"], kwargs, options["episodes"], options["seed"], debug=options["debug"])
    print(json.dumps(report.as_json()) if options["json"] else report.as_text())
    return 1 if report.count("error") else 0


def plot(options: dict[str, Any]) -> int:
    from proxrl.plot import plot as plot_runs

    print(f"Wrote {plot_runs(options['runs'], options['out'], options['metric'])}")
    return 0


def envs(options: dict[str, Any]) -> int:  # noqa: ARG001 - every command takes its options
    from proxrl.envs.registry import families

    for family in families():
        status = "installed" if family.installed else f"pip install 'proxrl[{family.extra}]'"
        print(f"{family.title:<30} preset {family.preset:<11} {status}")
        print(f"    {'  '.join(family.examples)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
