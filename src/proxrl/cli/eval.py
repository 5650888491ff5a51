"""`proxrl eval`: the return of a trained policy."""

import json
from typing import Any

from proxrl.cli.arguments import add_player, note_sudden_end
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection
from proxrl.config.parse import parse_value
from proxrl.runs.lookup import find_run

DESCRIPTION = """\
Play deterministic and stochastic episodes with a trained policy, and print the return of each kind
and, if the environment reports it, the success rate (docs/runs.md).
Normalization statistics are frozen, and all environments play equally many episodes.

  proxrl eval runs/CartPole-v1/ppo/seed1
  proxrl eval CartPole-v1 --checkpoint best --episodes 100
  proxrl eval my_package-make_env --eval-env-kwargs difficulty=5
"""


def add_arguments(parser: Parser) -> None:
    add_player(parser)
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="episodes of each kind (default 20)")
    parser.add_argument("--eval-env", metavar="ENV", help="another environment to evaluate in (default: that of training)")
    parser.add_argument(
        "--eval-env-kwargs",
        nargs="+",
        action="extend",
        metavar="KEY=VALUE",
        help="its keyword arguments; without --eval-env, changes to those of the run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: dict[str, Any]) -> int:
    with without_garbage_collection():
        from proxrl.look.agent import load
        from proxrl.look.eval_env import EvalEnv
        from proxrl.look.evaluation import check_request, evaluate_and_save

    check_request(options["episodes"], options["seed"])
    note_sudden_end(options["run"], options["runs_dir"])
    folder = find_run(options["run"], options["runs_dir"])
    agent = load(folder.path, options["checkpoint"], options["device"], trust=options["trust"])
    words = options["eval_env_kwargs"]
    eval_env = EvalEnv(options["eval_env"], None if words is None else parse_value("eval_env_kwargs", words))
    with eval_env.naming_its_flag(agent.config):
        scores = evaluate_and_save(folder, agent, options["episodes"], options["seed"], options["checkpoint"], eval_env)
    if options["json"]:
        print(json.dumps({kind: score.summary() for kind, score in scores.items()}))
        return 0
    for kind, score in scores.items():
        low, high = min(score.returns), max(score.returns)
        spread = f"min {low:.2f}, max {high:.2f}, {len(score.returns)} episodes"
        success = "" if score.success_rate is None else f"  success rate {score.success_rate:.0%}"
        print(f"{kind:<13}  return {score.mean:.2f} ± {score.deviation:.2f}{success}  ({spread})")
    return 0
