"""How many threads torch gets, and how they wait."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from proxrl.build import build_compute
from proxrl.config import Config
from proxrl.engine import threads
from proxrl.engine.flat import FlatParameters
from proxrl.engine.threads import WORK_PER_THREAD, choose_threads, count_work, cpu_has_bfloat16
from proxrl.envs.spaces import Masked
from proxrl.policy.networks import make_policy

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
PATCH = spaces.Dict(image=spaces.Box(0, 255, (16, 16, 3), np.uint8), floats=spaces.Box(-1, 1, (4,), np.float32))
VECTOR = spaces.Box(-1, 1, (17,), np.float32)


def normalized(space: gymnasium.Space) -> nn.Module:
    return nn.Sequential(nn.Linear(spaces.flatdim(space), 64), nn.LayerNorm(64), nn.Tanh())


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TORCH_THREADS", 64)


def policy_for(space: gymnasium.Space, **settings: Any) -> Any:
    config = Config(rollout_steps=2**16, **settings)
    policy = make_policy(config, space, spaces.Discrete(6))
    count_work(policy, config)
    return policy


def test_work_is_that_of_the_layers() -> None:
    # Two networks of 17 x 64, 64 x 64, and 64 x 6 or 64 x 1.
    assert policy_for(VECTOR).work_per_row == 2 * (17 * 64 + 64 * 64) + 64 * 7
    # Filters count once for each position of their output: 20 x 20, 9 x 9 and 7 x 7.
    convolutions = 32 * 4 * 64 * 400 + 64 * 32 * 16 * 81 + 64 * 64 * 9 * 49
    assert policy_for(ATARI).work_per_row == convolutions + 3136 * 512 + 512 * 7


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3)])
def test_work_of_a_memory_is_that_of_its_gates(kind: str, gates: int) -> None:
    policy = policy_for(VECTOR, hidden_sizes=(8,), memory=kind, memory_size=32, memory_layers=2, trunk="shared")
    assert policy.work_per_row == 17 * 8 + gates * 32 * (8 + 32 + 32 + 32) + 32 * 7


@pytest.mark.parametrize("space", [VECTOR, ATARI, PATCH, Masked(VECTOR, 6), spaces.Discrete(5), spaces.Tuple((VECTOR, PATCH))])
def test_work_is_known_for_every_space(space: gymnasium.Space) -> None:
    assert policy_for(space).work_per_row > 0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.matrix = nn.MultiheadAttention(16, 2, batch_first=True), nn.Parameter(torch.zeros(16, 16))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        rows = obs[:, :1, None].expand(-1, 8, 16) @ self.matrix
        return self.attention(rows, rows, rows)[0].flatten(1)


def attention(space: gymnasium.Space) -> nn.Module:  # noqa: ARG001 - the signature of encoders
    return Attention()


def weight_norm(space: gymnasium.Space) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(spaces.flatdim(space), 64))


def test_work_is_counted_in_any_layer() -> None:
    """By the operations themselves: modules and their parameters alone do not tell."""
    heads = 64 * 7
    assert policy_for(VECTOR, encoder=f"{__name__}:weight_norm").work_per_row == 2 * 17 * 64 + heads
    projections, products = 5 * 8 * 16 * 16, 2 * 8 * 8 * 16  # a matrix and 4 projections; scores and sums over 8 tokens
    assert policy_for(VECTOR, encoder=f"{__name__}:attention").work_per_row == 2 * (projections + products) + 128 * 7


def test_nothing_is_counted_if_nothing_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Config(num_envs=8, rollout_steps=128)
    policy = make_policy(small, VECTOR, spaces.Discrete(6))
    count_work(policy, small)
    assert policy.work_per_row is None
    assert choose_threads(policy, small) == 1
    assert policy_for(ATARI, threads=5).work_per_row is None
    assert choose_threads(policy_for(ATARI), Config(threads=5)) == 5
    monkeypatch.setattr(threads, "TORCH_THREADS", 1)
    assert policy_for(ATARI).work_per_row is None


def test_work_is_counted_before_networks_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("proxrl.build.count_work", lambda *_: order.append("count"))
    monkeypatch.setattr(nn.Module, "compile", lambda _: order.append("compile"))
    config = Config(compile=True)
    policy = make_policy(config, VECTOR, spaces.Discrete(6))
    build_compute(config, policy, FlatParameters(policy.groups()))
    assert order == ["count", "compile", "compile"]


def test_threads_go_by_the_work_in_a_minibatch(monkeypatch: pytest.MonkeyPatch) -> None:
    atari, config = policy_for(ATARI), Config(num_envs=8, rollout_steps=128, num_minibatches=4)
    work = 256 * atari.work_per_row
    assert choose_threads(atari, config) == work // WORK_PER_THREAD >= 2
    # Microbatches and the shares of ranks are smaller.
    assert choose_threads(atari, config.replace(accumulate=4)) == max(1, work // 4 // WORK_PER_THREAD)
    # Never more than there are cores.
    monkeypatch.setattr(threads, "TORCH_THREADS", 2)
    assert choose_threads(atari, config) == 2
    # Layers that are not linear do not make a small network large, nor does a small image.
    small = Config(num_envs=8, rollout_steps=128, num_minibatches=8)
    assert choose_threads(policy_for(VECTOR, encoder=f"{__name__}:normalized"), small) == 1
    assert choose_threads(policy_for(PATCH), small) == 1


def test_threads_are_restored_after_a_run() -> None:
    before = torch.get_num_threads()
    with threads.arithmetic(Config(threads=1), policy_for(ATARI)):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "50000 None"), ({"GOMP_SPINCOUNT": "7"}, "7 None"), ({"OMP_WAIT_POLICY": "active"}, "None active")],
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(
    variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    code = f"import sys, os, proxrl; assert 'torch' not in sys.modules; print(*map(os.environ.get, {names}))"
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **variables}, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.strip() == expected


def test_torch_still_has_its_private_test_for_bfloat16() -> None:
    assert cpu_has_bfloat16() in (True, False)
