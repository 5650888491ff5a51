"""Whole-training steps/s against Stable-Baselines3: same hyperparameters, one process each, alternating runs.

    python benchmarks/peers.py            # all workloads
    python benchmarks/peers.py cartpole   # one

Each run is a fresh process, so neither side profits from what the other has warmed up. Counted is everything from the end of
the first iteration to the end of the last: start-up and warm-up are not. Figures are ratios within a round, because machines are
noisy; the median counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

SHARED = {"clip": 0.2, "value_clip": "off", "gae_lambda": 0.95, "gamma": 0.99, "max_grad_norm": 0.5, "value_coef": 0.5}
CARTPOLE = {"env": "CartPole-v1", "num_envs": 4, "rollout_steps": 128, "num_minibatches": 4, "epochs": 4, "learning_rate": 2.5e-4}
CHEETAH = {"env": "HalfCheetah-v5", "num_minibatches": 32, "epochs": 10, "learning_rate": 3e-4, "entropy_coef": 0.0}
NORMALISED = {"normalize_observations": True, "normalize_rewards": True, "clip_rewards": 10.0}
WORKLOADS: dict[str, dict[str, Any]] = {
    "cartpole": {**SHARED, **CARTPOLE, "entropy_coef": 0.01, "total_steps": 51_200},
    "cheetah1": {**SHARED, **CHEETAH, **NORMALISED, "num_envs": 1, "rollout_steps": 2048, "total_steps": 20_480},
    "cheetah8": {**SHARED, **CHEETAH, **NORMALISED, "num_envs": 8, "rollout_steps": 256, "total_steps": 20_480},
    "cheetah8-inprocess": {
        **SHARED,
        **CHEETAH,
        **NORMALISED,
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


def run_proxrl(settings: dict[str, Any]) -> float:
    import proxrl

    settings = dict(settings)
    with tempfile.TemporaryDirectory() as folder:
        result = proxrl.train(settings.pop("env"), runs_dir=folder, quiet=True, anneal_learning_rate=False, **settings)
        lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    return (lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"])


def run_sb3(settings: dict[str, Any]) -> float:
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
        # Its fastest setting for networks this small, as measured: more threads only wait for each other.
        torch.set_num_threads(1)
        envs = make_vec_env(settings["env"], settings["num_envs"], seed=1)
    if settings.get("normalize_observations"):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    model = PPO(
        "CnnPolicy" if pixels else "MlpPolicy",
        envs,
        n_steps=settings["rollout_steps"],
        batch_size=settings["num_envs"] * settings["rollout_steps"] // settings["num_minibatches"],
        n_epochs=settings["epochs"],
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=settings["clip"],
        ent_coef=settings["entropy_coef"],
        vf_coef=settings["value_coef"] / 2,  # of the squared error; ours is of half of it
        max_grad_norm=settings["max_grad_norm"],
        device="cpu",
        seed=1,
    )
    marks = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.append((self.num_timesteps, time.perf_counter()))

    model.learn(settings["total_steps"], callback=Clock())
    step, start = marks[1]
    return (model.num_timesteps - step) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], help="which (default all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("PEER", "WORKLOAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        peer, workload = options.one
        print(json.dumps({"proxrl": run_proxrl, "sb3": run_sb3}[peer](WORKLOADS[workload])))
        return
    for workload in options.workloads or WORKLOADS:
        rates: dict[str, list[float]] = {"proxrl": [], "sb3": []}
        for _ in range(options.rounds):
            for peer, rate in rates.items():
                command = [sys.executable, __file__, "--one", peer, workload]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                rate.append(json.loads(done.stdout.splitlines()[-1]))
        ratios = [ours / theirs for ours, theirs in zip(rates["proxrl"], rates["sb3"], strict=True)]
        ours, theirs = (statistics.median(rate) for rate in rates.values())
        print(
            f"{workload:<19} proxrl {ours:>7,.0f} steps/s   sb3 {theirs:>7,.0f}"
            f"   ratio {statistics.median(ratios):.2f} (of {', '.join(f'{ratio:.2f}' for ratio in ratios)})",
            flush=True,
        )


if __name__ == "__main__":
    main()
