"""Several runs at once on the same cores: how much of its idle speed does each one keep?

python benchmarks/crowded.py [--seconds 10] [--runs 1 2 4]

People train several seeds side by side, and machines are shared. With k runs on c cores, a run's share of its idle speed is taken
to be min(1, c / k), even if it uses several cores when it is alone; what is printed is the speed that it kept, relative to that.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import nn

WORKLOADS = {
    "MLP with LayerNorm": ["HalfCheetah-v5", "--encoder", "crowded:normalized_mlp", "--num-envs", "1", "--vector", "inprocess"],
    "16 x 16 image and floats": ["crowded:Patch", "--num-envs", "8", "--vector", "inprocess"],
    "Pong": ["PongNoFrameskip-v4"],
}


def normalized_mlp(space: gymnasium.Space) -> nn.Module:
    layers = [nn.Linear(spaces.flatdim(space), 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh()]
    return nn.Sequential(*layers)


class Patch(gymnasium.Env):
    """A small image and some numbers, which are cheap to make: nearly all of the time is the learner's."""

    observation_space = spaces.Dict(image=spaces.Box(0, 255, (16, 16, 3), np.uint8), floats=spaces.Box(-1, 1, (4,), np.float32))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), float(action == self.time % 3), False, self.time == 100, {}

    def observe(self) -> dict[str, Any]:
        image = np.full((16, 16, 3), self.time % 3 * 100, np.uint8)
        return {"image": image, "floats": np.full(4, self.time / 100, np.float32)}


def run_at_once(words: list[str], count: int, seconds: float) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "proxrl", "bench", *words, "--seconds", str(seconds), "--json"]
    processes = [
        subprocess.Popen([*command, "--seed", str(n)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
        for n in range(count)
    ]
    return [json.loads(process.communicate()[0]) for process in processes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--flags", default="", help="more flags of proxrl bench for all runs, such as '--threads 2'")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    for name in options.workloads:
        idle = None
        for count in options.runs:
            speeds = [
                result["steps_per_second"]
                for result in run_at_once([*WORKLOADS[name], *options.flags.split()], count, options.seconds)
            ]
            mean = sum(speeds) / count
            idle = idle or mean
            share = min(1.0, cores / count)
            shown = " ".join(f"{speed:,.0f}" for speed in speeds)
            print(
                f"{name}, {count} at once: {mean:,.0f} steps/s each ({shown}),"
                f" {mean / idle:.2f} of the first, {mean / idle / share:.2f} of its share",
                flush=True,
            )


if __name__ == "__main__":
    main()
