"""`proxrl play`"""

from typing import Any

from proxrl.commands.parser import Parser

DESCRIPTION = """\
A trained policy in a window; Esc, Q or closing it ends. Without a display, use proxrl record.

  proxrl play runs/CartPole-v1/ppo/seed1
  proxrl play LunarLander-v3 --checkpoint best --deterministic --episodes 3
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder, such as runs/CartPole-v1/ppo/seed1")
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes to play (default: until the window is closed)")
    parser.add_argument("--checkpoint", default="latest", metavar="NAME", help="latest, best or step-N (default latest)")
    parser.add_argument("--deterministic", action="store_true", help="take the likeliest actions (default: sample them)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes (default: from the run's seed)")
    parser.add_argument("--fps", type=float, metavar="N", help="frames per second (default: the environment's own)")
    parser.add_argument("--device", metavar="NAME", help="torch device (default: the run's)")


def run(options: dict[str, Any]) -> int:
    from proxrl.window import play

    options = {name: value for name, value in options.items() if name != "debug"}
    for number, episode in enumerate(play(**options), start=1):
        print(f"episode {number}: return {episode.total_reward:.2f}, {episode.length:,} steps")
    return 0
