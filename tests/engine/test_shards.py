"""Threads that share the rows of a minibatch compute what one thread computes."""

import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl import ppo
from proxrl.build import build
from proxrl.config import Config
from proxrl.engine import threads
from proxrl.engine.shards import Shards
from proxrl.engine.threads import arithmetic, shard_count
from proxrl.policy.networks import make_policy


class Picture(gymnasium.Env):
    """Random images; episodes of seven steps end inside rollouts."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.image(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.image(), float(action), self.time == 7, False, {}

    def image(self) -> Any:
        return self.np_random.integers(0, 256, (36, 36, 3), np.uint8)


def train_once(shards: int, **settings: Any) -> tuple[dict[str, Any], Tensor]:
    """Return everything that collection and the advantages have computed, and the parameters after one iteration."""
    config = Config(num_envs=10, rollout_steps=12, num_minibatches=2, epochs=2, threads=shards, vector="inprocess", **settings)
    parts = build(config, Picture)
    with arithmetic(config, parts.policy, shards=parts.compute.shards.count):
        assert parts.compute.shards.count == shards
        assert torch.get_num_threads() == 1
        parts.collector.reset(1, None)
        streams, now = ppo.random_streams(parts, 0), config.at(0)
        rollout = parts.collector.collect(streams, 10**9)
        batch = ppo.advantage(parts, rollout, now)
        ppo.update(parts, batch, streams, now, config.phases(0))
    parts.environments.close()
    seen = {"action": rollout.action.copy(), "log_prob": batch.log_prob, "value": batch.value, "advantage": batch.advantage}
    return seen, parts.parameters.values.clone()


@pytest.mark.parametrize("settings", [{}, {"trunk": "separate"}, {"memory": "gru", "memory_size": 16, "sequence_length": 4}])
def test_several_threads_train_as_one(settings: dict[str, Any]) -> None:
    alone, expected = train_once(1, **settings)
    for count in (2, 3):
        seen, parameters = train_once(count, **settings)
        for name, column in alone.items():
            np.testing.assert_allclose(seen[name], column, rtol=1e-4, atol=1e-5, err_msg=name)
        torch.testing.assert_close(parameters, expected, rtol=0, atol=2e-5)


def test_repeated_runs_are_identical() -> None:
    (_, first), (_, second) = train_once(3), train_once(3)
    assert torch.equal(first, second)


def test_results_keep_their_order_and_errors_wait_for_all_threads() -> None:
    shards = Shards(3)
    meeting = threading.Barrier(3, timeout=60)

    def meet(k: int) -> tuple[int, str]:
        meeting.wait()  # for the two others of three consecutive items: each has a thread of its own
        return k, threading.current_thread().name

    names = shards.map(meet, range(9))
    assert [k for k, _ in names] == list(range(9))
    assert len({name for _, name in names}) == 3
    finished = []

    def work(k: int) -> None:
        if k == 0:
            raise ValueError("the caller's own part")
        time.sleep(0.05)
        finished.append(k)

    with pytest.raises(ValueError, match="the caller's own part"):
        shards.map(work, range(3))
    assert sorted(finished) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        shards.map(lambda k: 1 // (k - 1), range(3))


def test_a_few_rows_are_not_split() -> None:
    assert Shards(2).rows(7) == [slice(0, 7)]
    assert Shards(2).rows(9) == [slice(0, 4), slice(4, 9)]
    assert Shards().rows(100) == [slice(0, 100)]


def batch_normalized(space: gymnasium.Space) -> nn.Module:
    return nn.Sequential(nn.Linear(spaces.flatdim(space), 8), nn.BatchNorm1d(8))


def test_rows_that_depend_on_each_other_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TORCH_THREADS", 4)
    vector, config = spaces.Box(-1, 1, (5,), np.float32), Config(threads=4)
    policy = make_policy(config, vector, spaces.Discrete(2))
    assert shard_count(policy, config, None, sees_features=False) == 4
    assert shard_count(policy, config, None, sees_features=True) == 1
    assert shard_count(policy, config.replace(compile=True), None, sees_features=False) == 1
    normalized = config.replace(encoder=f"{__name__}:batch_normalized")
    assert shard_count(make_policy(normalized, vector, spaces.Discrete(2)), normalized, None, sees_features=False) == 1
