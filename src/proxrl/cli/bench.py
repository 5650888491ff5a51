"""`proxrl bench`: how fast this machine trains."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proxrl.cli.parser import Parser
from proxrl.cli.train import add_run_settings, resolve_settings
from proxrl.errors import ProxRLError
from proxrl.world.launcher import launched

if TYPE_CHECKING:
    from proxrl.bench import Speed
    from proxrl.config import Config

DESCRIPTION = """\
Train for some seconds in a temporary folder, and print the speed and where time was spent.

  proxrl bench CartPole-v1
  proxrl bench HalfCheetah-v4 --num-envs 8 --rollout-steps 256
  mpirun -n 2 proxrl bench PongNoFrameskip-v4

All settings of 'proxrl train' are accepted. Shares are of the time of rank 0; communication
includes waiting for other ranks.
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="X", help="seconds to measure, after one warm-up iteration (default 10)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_run_settings(parser)


def run(options: dict[str, Any]) -> int:
    from proxrl.bench import bench

    seconds, as_json, _ = (options.pop(name) for name in ("seconds", "json", "debug"))
    if seconds <= 0:
        raise ProxRLError(f"--seconds is {seconds:g}, but must be greater than 0")
    resolved = resolve_settings(options, None)
    speed = bench(resolved.config, seconds, resolved.env)
    if launched().rank == 0 or resolved.config.world == "solo":
        print(json.dumps(asdict(speed) | {"rest": speed.rest}) if as_json else as_text(resolved.config, speed))
    return 0


def as_text(config: "Config", speed: "Speed") -> str:
    """Return the sizes of the run, its speed, and the share of time of each part."""
    ranks = "1 rank" if speed.ranks == 1 else f"{speed.ranks} ranks"
    sizes = f"{config.num_envs} envs ({config.vector}) x {config.rollout_steps} steps"
    update = f"{config.epochs} epochs x {config.num_minibatches} minibatches of {config.minibatch_size:,}"
    lines = [
        f"{config.env}: {sizes}, {update}",
        f"{speed.steps_per_second:,.0f} steps/s over {speed.seconds:.1f} s ({speed.iterations} iterations), {ranks},"
        f" {speed.cores} core{'s' * (speed.cores > 1)} each",
    ]
    shares = ("environments", "acting", "learning", "communication", "rest")
    return "\n".join([*lines, *(f"  {name:<14} {getattr(speed, name):>4.0%}" for name in shares)])
