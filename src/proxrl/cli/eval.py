"""`proxrl eval`: the return of a trained policy."""

import json
from typing import Any

from proxrl.cli.arguments import add_player, note_sudden_end
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection

DESCRIPTION = """\
Play deterministic and stochastic episodes with a trained policy, and print the return of each kind, and
the success rate if the environment's info tells it (docs/runs.md).
Normalization statistics are frozen, and all environments play equally many episodes.

  proxrl eval runs/CartPole-v1/ppo/seed1
  proxrl eval CartPole-v1 --checkpoint best --episodes 100
"""


def add_arguments(parser: Parser) -> None:
    add_player(parser)
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="episodes of each kind (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: dict[str, Any]) -> int:
    note_sudden_end(options["run"], options["runs_dir"])
    with without_garbage_collection():
        from proxrl.look.evaluation import evaluate_and_save

    scores = evaluate_and_save(
        options["run"],
        episodes=options["episodes"],
        seed=options["seed"],
        checkpoint=options["checkpoint"],
        device=options["device"],
        runs_dir=options["runs_dir"],
        trust=options["trust"],
    )
    if options["json"]:
        print(json.dumps({kind: score.summary() for kind, score in scores.items()}))
        return 0
    for kind, score in scores.items():
        low, high = min(score.returns), max(score.returns)
        spread = f"min {low:.2f}, max {high:.2f}, {len(score.returns)} episodes"
        success = "" if score.success_rate is None else f"  success rate {score.success_rate:.0%}"
        print(f"{kind:<13}  return {score.mean:.2f} ± {score.deviation:.2f}{success}  ({spread})")
    return 0
