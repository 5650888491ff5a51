"""Tasks whose reward is too far away to be found by chance: with a bonus they are solved, and without one they are not."""

from pathlib import Path
from typing import Any

import pytest

from solved import solves
from sparse_envs import Chain

CHAIN: dict[str, Any] = {
    "num_envs": 8,
    "rollout_steps": 76,
    "num_minibatches": 4,
    "epochs": 8,
    "hidden_sizes": (32,),
    "learning_rate": 3e-3,
    "entropy_coef": 0.005,
    "normalize_observations": False,
    "normalize_rewards": False,
    "total_steps": 40_000,
}


# The best possible return is 11. Seeds 1 to 3 needed 11,552 steps each with rnd, and 24,320, 30,400 and 20,064 with icm. A random
# policy reaches the end once in 400,000 episodes; 40,000 steps are about 1,050.


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_rnd_finds_the_end_of_a_chain(tmp_path: Path, seed: int) -> None:
    assert solves(tmp_path, Chain, 8, seed=seed, bonus=["rnd"], rnd_coef=2.0, **CHAIN)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_icm_finds_it_too(tmp_path: Path, seed: int) -> None:
    assert solves(tmp_path, Chain, 8, seed=seed, bonus=["icm"], icm_coef=0.1, **CHAIN)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_nobody_finds_it_without_a_bonus(tmp_path: Path, seed: int) -> None:
    assert not solves(tmp_path, Chain, 0.1, seed=seed, **CHAIN)
