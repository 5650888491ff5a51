"""`proxrl check`: problems of an environment that would spoil training."""

import contextlib
import json
import sys
from typing import Any

from proxrl.cli.parser import Parser
from proxrl.config import Config
from proxrl.config.parse import parse_value

DESCRIPTION = """\
Play random episodes of an environment, and report what would spoil PPO and what to change.
The exit code is 1 if there are errors.

  proxrl check CartPole-v1
  proxrl check my_package:make_env --env-kwargs difficulty=3
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("env", metavar="ENV", help="Gymnasium id or module:callable")
    parser.add_argument("--env-kwargs", nargs="+", default=[], metavar="KEY=VALUE", help="keyword arguments of the environment")
    parser.add_argument(
        "--wrapper", nargs="+", action="extend", metavar="NAME|KEY=VALUE", help="wrappers, as 'proxrl train' takes them"
    )
    parser.add_argument("--action-repeat", metavar="N", help="repeat each action N times and sum the rewards")
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="episodes to play (default 10)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of episodes and actions (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: dict[str, Any]) -> int:
    from proxrl.check.checker import check as check_environment
    from proxrl.config.wrappers import load_wrapping

    config = Config(**{name: parse_value(name, options[name]) for name in ("wrapper", "action_repeat")})
    config.check_ranges()
    wrapping = load_wrapping(config)
    kwargs = parse_value("env_kwargs", options["env_kwargs"])
    # What the environment itself prints must not end up in the JSON.
    with contextlib.redirect_stdout(sys.stderr if options["json"] else sys.stdout):
        report = check_environment(
            options["env"], kwargs, options["episodes"], options["seed"], debug=options["debug"], wrapping=wrapping
        )
    print(json.dumps(report.as_json()) if options["json"] else report.as_text())
    return 1 if report.count("error") else 0
