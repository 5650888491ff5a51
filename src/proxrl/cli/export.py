"""`proxrl export`"""

from pathlib import Path
from typing import Any

from proxrl.cli.parser import Parser, add_checkpoint

DESCRIPTION = """\
The policy of a run as one file that needs no ProxRL: observations as the environment gives them in, its actions out.
A model card (README.md) and the settings lie beside it: a folder as model hubs take it. Nothing is uploaded.

  proxrl export runs/CartPole-v1/ppo/seed1
  proxrl export runs/CartPole-v1/ppo/seed1 --format pt2 --checkpoint best --out cartpole
"""


def add_arguments(parser: Parser) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--format", choices=["onnx", "pt2"], default="onnx", help="ONNX, or torch.export's own format (default onnx)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write (default: export in the run's)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=20,
        metavar="N",
        help="episodes for the card's scores if the run keeps none for this checkpoint (default 20; 0 leaves them out)",
    )


def run(options: dict[str, Any]) -> int:
    from proxrl.export.exporter import export_policy

    options = {name: value for name, value in options.items() if name != "debug"}
    exported = export_policy(**options)
    print(f"Wrote {exported.path} of step {exported.step:,}; it differs from the policy by {exported.difference:.1e} at most")
    print(f"Wrote {exported.card}")
    return 0
