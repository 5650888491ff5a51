"""`proxrl record`: a video of a trained policy."""

from pathlib import Path
from typing import Any

from proxrl.cli.arguments import add_viewer, note_sudden_end
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection

DESCRIPTION = """\
Record episodes of a trained policy as a video, in videos/ of the run folder or to --out. No display
is needed.

  proxrl record runs/CartPole-v1/ppo/seed1
  proxrl record LunarLander-v3 --checkpoint best --episodes 3 --out lander.mp4
"""


def add_arguments(parser: Parser) -> None:
    add_viewer(parser)
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="episodes in the video (default 1)")
    parser.add_argument("--max-steps", type=int, metavar="N", help="end the video after N steps (default: no limit)")
    parser.add_argument("--gif", action="store_true", help="write a GIF instead of an mp4")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="mp4 or GIF to write (default: a file in videos/ of the run folder)"
    )


def run(options: dict[str, Any]) -> int:
    note_sudden_end(options["run"], options["runs_dir"])
    with without_garbage_collection():
        from proxrl.look.recording import RecordingProgress, actions_of, record

    options.pop("debug")
    with RecordingProgress(options["episodes"], options["max_steps"]) as progress:
        recording = record(**options, watch=progress.watch)
    cut = "" if len(recording.returns) == options["episodes"] else ", cut off by --max-steps"
    print(f"Wrote {recording.path} ({recording.frames:,} frames, {actions_of(options['deterministic'])}{cut})")
    return 0
