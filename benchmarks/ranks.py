"""Several ranks against one: the same run with the same total number of environments, on more processes of this machine.

    python benchmarks/ranks.py                         # HalfCheetah-v5, 1 and 2 ranks by MPI and torchrun
    python benchmarks/ranks.py --env PongNoFrameskip-v4
    python benchmarks/ranks.py --growth                # messages and bytes per iteration with 1, 2, 4 and 8 ranks

Each run has fresh processes, and the runs take turns. The time is measured from the end of the first iteration to the end of the
last. Machines are noisy, so ratios are computed within a round, and the median is reported. `waiting` is the share of that time
that rank 0 spends on communication, including waiting for slower ranks.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": {"num_envs": 8, "rollout_steps": 256, "num_minibatches": 32, "epochs": 10, "total_steps": 8 * 256 * 10},
    "PongNoFrameskip-v4": {"num_envs": 8, "rollout_steps": 128, "num_minibatches": 4, "epochs": 4, "total_steps": 8 * 128 * 4},
    "CartPole-v1": {"num_envs": 8, "rollout_steps": 128, "num_minibatches": 4, "epochs": 4, "total_steps": 8 * 128 * 20},
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def train_as_rank(settings: dict[str, Any], out: Path) -> None:
    """Train as one rank; rank 0 writes the measurements to `out`."""
    import proxrl
    from proxrl import launch
    from proxrl.bench import TimedWorld

    class CountedWorld(TimedWorld):
        """Also counts messages and their bytes."""

        messages = bytes = 0

        def sum_(self, tensor: Any) -> None:
            self.count(tensor.nbytes)
            super().sum_(tensor)

        def gather(self, value: Any) -> list[Any]:
            self.count(len(pickle.dumps(value)))
            return super().gather(value)

        def count(self, size: int) -> None:
            self.messages += 1
            self.bytes += size

    world = CountedWorld(launch.build_world(proxrl.Config()))
    launch.build_world = lambda *_: world  # type: ignore[assignment]
    marks: list[tuple[float, int, int, float, int]] = []

    class Mark(proxrl.Callback):
        def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
            marks.append((time.perf_counter(), session.step, world.messages, world.stopwatch.seconds, world.bytes))

    with tempfile.TemporaryDirectory() as folder:
        proxrl.train(**settings, runs_dir=folder, quiet=True, tensorboard=False, callbacks=[Mark()])
    first, last = marks[0], marks[-1]
    iterations = len(marks) - 1
    if world.rank == 0:
        measured = {
            "speed": (last[1] - first[1]) / (last[0] - first[0]),
            "waiting": (last[3] - first[3]) / (last[0] - first[0]),
            "messages": (last[2] - first[2]) / iterations,
            "bytes": (last[4] - first[4]) / iterations,
        }
        out.write_text(json.dumps(measured))


def measure(ranks: int, launcher: str, settings: dict[str, Any]) -> dict[str, float]:
    """Run the training with this many ranks, and return the measurements of rank 0."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        arguments = [__file__, "--as-rank", json.dumps(settings), out.name]
        folder = Path(sys.executable).parent
        mpirun = [str(folder / "mpirun"), "-n", str(ranks), "--map-by", ":oversubscribe", "--bind-to", "none", sys.executable]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable] if ranks == 1 else mpirun if launcher == "mpi" else torchrun
        done = subprocess.run([*command, *arguments], env={**os.environ, **AS_ROOT}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return dict(json.loads(Path(out.name).read_text()))


def compare(env: str, vector: str, rounds: int) -> None:
    """Print steps/s, ratios and waiting for one rank, and for two ranks with each launcher."""
    settings = {"env": env, "vector": vector, **SETTINGS[env]}
    measurements: dict[str, list[dict[str, float]]] = {"1 rank": [], "2 ranks, mpi": [], "2 ranks, torch": []}
    for _ in range(rounds):
        measurements["1 rank"].append(measure(1, "", settings))
        measurements["2 ranks, mpi"].append(measure(2, "mpi", settings))
        measurements["2 ranks, torch"].append(measure(2, "torch", settings))
    for name, runs in measurements.items():
        speed, waiting = (statistics.median(run[key] for run in runs) for key in ("speed", "waiting"))
        ratios = [run["speed"] / alone["speed"] for run, alone in zip(runs, measurements["1 rank"], strict=True)]
        spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        ratio = f"ratio {statistics.median(ratios):.2f} (of {spread})"
        print(f"{env:<20} {name:<15} {speed:>7.0f} steps/s   {ratio}   waiting {waiting:.0%}")


def growth(env: str, vector: str) -> None:
    """Print how messages and bytes grow with the number of ranks."""
    settings = {"env": env, "vector": vector, **SETTINGS[env]}
    for ranks in (1, 2, 4, 8):
        result = measure(ranks, "mpi", settings)
        numbers = f"{result['messages']:>6.0f} messages, {result['bytes'] / 2**20:>7.2f} MiB per rank and iteration"
        print(f"{env:<20} {ranks} ranks (mpi): {numbers}, {result['speed']:>7.0f} steps/s, waiting {result['waiting']:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5", choices=SETTINGS)
    parser.add_argument("--vector", default="auto", help="where environments run, as in proxrl train (default auto)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        train_as_rank(json.loads(options.as_rank[0]), Path(options.as_rank[1]))
    elif options.growth:
        growth(options.env, options.vector)
    else:
        compare(options.env, options.vector, options.rounds)


if __name__ == "__main__":
    main()
