"""`proxrl export`: the policy as one file that runs without ProxRL."""

from pathlib import Path
from typing import Any

from proxrl.cli.arguments import add_checkpoint
from proxrl.cli.parser import Parser
from proxrl.common.imports import without_garbage_collection

DESCRIPTION = """\
Write the policy of a run to one file that runs without ProxRL: it takes the environment's
observations and returns actions. A model card (README.md) and the settings are written beside it,
in the layout of model hubs. Nothing is uploaded.

  proxrl export runs/CartPole-v1/ppo/seed1
  proxrl export runs/CartPole-v1/ppo/seed1 --format pt2 --checkpoint best --out cartpole
"""


def add_arguments(parser: Parser) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--format", choices=["onnx", "pt2"], default="onnx", help="ONNX, or the format of torch.export (default onnx)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: export in the run folder)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=20,
        metavar="N",
        help="episodes for the scores on the card if this checkpoint was not evaluated yet; 0: no scores (default 20)",
    )


def run(options: dict[str, Any]) -> int:
    with without_garbage_collection():
        from proxrl.export.exporter import export_policy

    options.pop("debug")
    exported = export_policy(**options)
    print(f"Wrote {exported.path} of step {exported.step:,}; it differs from the policy by {exported.difference:.1e} at most")
    print(f"Wrote {exported.card}")
    return 0
