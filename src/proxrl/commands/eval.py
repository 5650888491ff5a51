"""`proxrl eval`"""

import json
from typing import Any

from proxrl.commands.parser import Parser

DESCRIPTION = "Deterministic and stochastic return of a run, with frozen statistics and equal quotas per environment."


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder, such as runs/CartPole-v1/ppo/seed1")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="episodes of each kind (default 20)")
    parser.add_argument("--checkpoint", default="latest", metavar="NAME", help="latest, best or step-N (default latest)")
    parser.add_argument("--device", metavar="NAME", help="torch device (default: the run's)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes (default: from the run's seed)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: dict[str, Any]) -> int:
    from proxrl.evaluation import evaluate_and_keep

    scores = evaluate_and_keep(
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
