"""`proxrl play`: a trained policy in a window."""

from typing import Any

from proxrl.cli.arguments import add_viewer, note_sudden_end
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection

DESCRIPTION = """\
Show a trained policy in a window, with the return below the picture. Space pauses, N takes one
step, + and - change the speed; Esc, Q or closing the window ends it. Without a display, use proxrl
record.

  proxrl play runs/CartPole-v1/ppo/seed1
  proxrl play LunarLander-v3 --checkpoint best --deterministic --episodes 3
"""


def add_arguments(parser: Parser) -> None:
    add_viewer(parser)
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes to play (default: until the window is closed)")


def run(options: dict[str, Any]) -> int:
    note_sudden_end(options["run"], options["runs_dir"])
    with without_garbage_collection():
        from proxrl.look.recording import actions_of
        from proxrl.look.window import KEYS, play

    options.pop("debug")
    other = (
        "without --deterministic they are sampled" if options["deterministic"] else "--deterministic takes the most likely ones"
    )
    print(f"Playing {actions_of(options['deterministic'])} ({other}); {KEYS}", flush=True)
    for number, episode in enumerate(play(**options), start=1):
        print(f"episode {number}: return {episode.total_reward:.2f}, {episode.length:,} steps")
    return 0
