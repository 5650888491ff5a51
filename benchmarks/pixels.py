"""The cost of pixels: the time of a learner's minibatch against the bare network, and the memory of a rollout of stacked frames.

    python benchmarks/pixels.py

The bare network is the same Nature CNN in the same layout, forward and backward on floats that are already in memory: a lower
bound for any learner. Both are timed in turns, because machines are noisy, and the median is reported.
"""

import statistics
import time

import numpy as np
import torch

from proxrl import ppo
from proxrl.build import build
from proxrl.config.resolve import resolve
from proxrl.engine.threads import arithmetic

ENV = "PongNoFrameskip-v4"


def minibatch_times(rounds: int = 7, num_envs: int = 8, steps: int = 128) -> None:
    """Print the time of a minibatch in the learner and in the bare network."""
    config = resolve(ENV, {"epochs": 1, "num_envs": num_envs, "rollout_steps": steps}).config
    with arithmetic(config):
        parts = build(config, ENV)
    with arithmetic(config, parts.policy):
        parts.collector.reset(1, None)
        now, policy = config.at(0), parts.policy
        batch = ppo.advantage(parts, parts.collector.collect(ppo.random_streams(parts, 0), 10**9), now)
        images = torch.rand(config.minibatch_size, 4, 84, 84).contiguous(memory_format=torch.channels_last)
        encoder = policy.actor

        def bare() -> None:
            features = torch.relu(encoder.linear(encoder.convolutions(images).flatten(1)))
            (policy.action(features).sum() + policy.value(features).sum()).backward()

        def learner() -> None:
            ppo.update(parts, batch, ppo.random_streams(parts, 0), now, config.phases(0))

        learner()
        pairs = []
        for _ in range(rounds):
            start = time.perf_counter()
            learner()
            middle = time.perf_counter()
            for _ in range(config.num_minibatches):
                bare()
            pairs.append((middle - start, time.perf_counter() - middle))
    parts.environments.close()
    learner_ms, bare_ms = (1000 * statistics.median(times) / config.num_minibatches for times in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(
        f"minibatch of {config.minibatch_size}: learner {learner_ms:.0f} ms, bare network {bare_ms:.0f} ms,"
        f" ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


def rollout_memory(num_envs: int = 64, steps: int = 128) -> None:
    """Print the memory of a rollout, next to that of its frames and that of its stacks."""
    config = resolve(ENV, {"num_envs": num_envs, "rollout_steps": steps}).config
    with arithmetic(config):
        parts = build(config, ENV)
    parts.collector.reset(1, None)
    rollout = parts.collector.collect(ppo.random_streams(parts, 0), 10**9)
    frames = rollout.obs.frames[: rollout.obs.used]
    distinct = len({frame.tobytes() for frame in frames}) * frames[0].nbytes
    stored = rollout.obs.frames.nbytes + rollout.obs.positions.nbytes
    stacked = int(np.prod(rollout.obs.shape))
    parts.environments.close()
    # Equal frames, as of an idle game, are stored as often as they are observed.
    observed = (num_envs * (steps + 4)) * frames[0].nbytes
    print(
        f"{num_envs} x {steps} rollout: {stored / 2**20:.0f} MiB stored, {observed / 2**20:.0f} MiB of frames observed"
        f" (ratio {stored / observed:.2f}; {distinct / 2**20:.0f} MiB of them differ), {stacked / 2**20:.0f} MiB as stacks"
    )


if __name__ == "__main__":
    minibatch_times()
    rollout_memory()
