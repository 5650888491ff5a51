"""Steps/s of whole training runs, ProxRL against Stable-Baselines3 with the same hyperparameters; with memory, against
RecurrentPPO of sb3-contrib.

    python benchmarks/peers.py                          # all workloads
    python benchmarks/peers.py cartpole                 # one
    python benchmarks/peers.py --before ../earlier      # an earlier checkout of ProxRL as well
    python benchmarks/peers.py --processor-time         # on a machine with other work

Each run is a fresh process, so that no side benefits from caches that the other has warmed up. The time is measured from the end
of the first iteration to the end of the last, without start-up. Machines are noisy, so the sides take turns, the ratios are
computed within a round, and the median over the rounds is what counts. Processor time is that of all threads of the process, so
it is meaningful for workloads that have one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
SHARED = {"clip": 0.2, "value_clip": "off", "gae_lambda": 0.95, "gamma": 0.99, "max_grad_norm": 0.5, "value_coef": 0.5}
CARTPOLE = {"env": "CartPole-v1", "num_envs": 4, "rollout_steps": 128, "num_minibatches": 4, "epochs": 4, "learning_rate": 2.5e-4}
CHEETAH = {"env": "HalfCheetah-v5", "num_minibatches": 32, "epochs": 10, "learning_rate": 3e-4, "entropy_coef": 0.0}
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True, "clip_rewards": 10.0}
WORKLOADS: dict[str, dict[str, Any]] = {
    "cartpole": {**SHARED, **CARTPOLE, "entropy_coef": 0.01, "total_steps": 51_200},
    "cartpole-lstm": {
        **SHARED,
        **CARTPOLE,
        "num_envs": 8,
        "memory": "lstm",
        "memory_size": 64,
        "entropy_coef": 0.01,
        "total_steps": 20_480,
    },
    "cheetah1": {**SHARED, **CHEETAH, **NORMALIZED, "num_envs": 1, "rollout_steps": 2048, "total_steps": 20_480},
    "cheetah8": {**SHARED, **CHEETAH, **NORMALIZED, "num_envs": 8, "rollout_steps": 256, "total_steps": 20_480},
    "cheetah8-inprocess": {
        **SHARED,
        **CHEETAH,
        **NORMALIZED,
        "num_envs": 8,
        "rollout_steps": 256,
        "total_steps": 20_480,
        "vector": "inprocess",
    },
    "pong": {
        **SHARED,
        "env": "PongNoFrameskip-v4",
        "num_envs": 8,
        "rollout_steps": 128,
        "num_minibatches": 4,
        "epochs": 4,
        "learning_rate": 2.5e-4,
        "entropy_coef": 0.01,
        "total_steps": 6 * 1024,
    },
}


Clock = Callable[[], float]


def run_proxrl(settings: dict[str, Any], clock: Clock) -> float:
    """Train with ProxRL, and return its steps/s."""
    import proxrl
    from proxrl import Callback

    marks = []

    class Marks(Callback):
        def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
            marks.append((session.step, clock()))

    settings = dict(settings)
    with tempfile.TemporaryDirectory() as folder:
        env = settings.pop("env")
        proxrl.train(env, runs_dir=folder, quiet=True, anneal_learning_rate=False, callbacks=[Marks()], **settings)
    (first, start), (last, end) = marks[0], marks[-1]
    return (last - first) / (end - start)


def run_sb3(settings: dict[str, Any], clock: Clock) -> float:
    """Train with Stable-Baselines3, and return its steps/s."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    pixels = "NoFrameskip" in settings["env"]
    if pixels:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        envs = VecFrameStack(make_atari_env(settings["env"], settings["num_envs"], seed=1), 4)
    else:
        # The fastest setting that was measured for networks this small: more threads only wait for each other.
        torch.set_num_threads(1)
        envs = make_vec_env(settings["env"], settings["num_envs"], seed=1)
    if settings.get("normalize_observations"):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    kind: Any = PPO
    policy, policy_kwargs = "CnnPolicy" if pixels else "MlpPolicy", {}
    if "memory" in settings:
        from sb3_contrib import RecurrentPPO

        kind = RecurrentPPO
        policy, policy_kwargs = policy.replace("Policy", "LstmPolicy"), {"lstm_hidden_size": settings["memory_size"]}
    model = kind(
        policy,
        envs,
        policy_kwargs=policy_kwargs,
        n_steps=settings["rollout_steps"],
        batch_size=settings["num_envs"] * settings["rollout_steps"] // settings["num_minibatches"],
        n_epochs=settings["epochs"],
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=settings["clip"],
        ent_coef=settings["entropy_coef"],
        vf_coef=settings["value_coef"] / 2,  # the coefficient of the squared error; in ProxRL, of half of it
        max_grad_norm=settings["max_grad_norm"],
        device="cpu",
        seed=1,
    )
    marks = []

    class Marks(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.append((self.num_timesteps, clock()))

    model.learn(settings["total_steps"], callback=Marks())
    step, start = marks[1]
    return (model.num_timesteps - step) / (clock() - start)


def measure(side: str, settings: dict[str, Any], source: Path | None, clock: str) -> float:
    """Return the steps/s of one run in a fresh process, which imports `proxrl` from `source` if it is given."""
    env = {**os.environ, "PYTHONPATH": str(source)} if source else None
    command = [sys.executable, __file__, "--one", side, clock, json.dumps(settings)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def compare(settings: dict[str, Any], rounds: int, sources: dict[str, Path | None], clock: str) -> str:
    """Run all sides in turn, and return their median steps/s, the ratio of each to the first, and of the last two."""
    rates: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(rounds):
        for name in list(sources)[:: 1 if number % 2 == 0 else -1]:  # reversed every other round: the order must not matter
            rates[name].append(measure("proxrl" if sources[name] else "sb3", settings, sources[name], clock))
    first, *others = sources
    pairs = [(name, first) for name in others] + ([(others[-1], others[-2])] if len(others) > 1 else [])
    parts = [f"{name} {statistics.median(rates[name]):,.0f} steps/s" for name in sources]
    for one, other in pairs:
        ratios = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
        parts.append(f"{one}/{other} {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    return "   ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], help="which workloads to run (default all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--total-steps", type=int, help="length of a run, instead of the workload's")
    parser.add_argument("--before", type=Path, metavar="PATH", help="checkout of an earlier commit of ProxRL to measure as well")
    parser.add_argument("--processor-time", action="store_true", help="steps per second of processor time")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "CLOCK", "SETTINGS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, clock, settings = options.one
        print(json.dumps({"proxrl": run_proxrl, "sb3": run_sb3}[side](json.loads(settings), getattr(time, clock))))
        return
    sources: dict[str, Path | None] = {"sb3": None, "proxrl": SOURCE}
    if options.before is not None:
        before = options.before.resolve() / "src"
        if not (before / "proxrl").is_dir():
            parser.error(f"--before: there is no src/proxrl in {options.before}")
        sources = {"sb3": None, "before": before, "after": SOURCE}
    clock = "process_time" if options.processor_time else "perf_counter"
    for workload in options.workloads or WORKLOADS:
        settings = dict(WORKLOADS[workload])
        settings["total_steps"] = options.total_steps or settings["total_steps"]
        print(f"{workload:<19} {compare(settings, options.rounds, sources, clock)}", flush=True)


if __name__ == "__main__":
    main()
