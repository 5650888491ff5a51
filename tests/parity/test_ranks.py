"""How environments are spread over ranks changes nothing but the speed."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import NEVER, NextStepEnvs, assemble, run_ranks, scripted, train
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs

SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"),), (NEVER,), ((1, "terminated"), (6, "truncated")))


def trained(world: Any, pool: Any, config: Config) -> dict[str, torch.Tensor]:
    share = len(SCRIPTS) // world.size
    first = world.rank * share
    makers = scripted(SCRIPTS[first : first + share], spaces.Box(-1, 1, (2,), np.float32), first)
    parts = assemble(config, pool(makers, first_env=first), world, first)
    session = train(parts, iterations=3)
    learnt = {**parts.policy.state_dict(), **{f"rewards.{name}": x for name, x in parts.reward_scaler.state_dict().items()}}
    return {"step": torch.tensor(session.step), **learnt}


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_one_two_and_four_ranks_train_alike(pool: Any, compute: str) -> None:
    # T does not divide by the number of minibatches, and dummy steps leave ranks with different numbers of valid rows.
    config = Config(
        num_envs=4,
        rollout_steps=6,
        num_minibatches=4,
        total_steps=960,
        hidden_sizes=(8,),
        normalize_observations=True,
        normalize_rewards=True,
        target_kl=1.0,
        compute=compute,
    )
    expected = run_ranks(1, lambda world: trained(world, pool, config))[0]
    for size in (2, 4):
        ranks = run_ranks(size, lambda world: trained(world, pool, config))
        for learnt in ranks:
            assert learnt.keys() == expected.keys()
            for name, tensor in learnt.items():
                assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-4, atol=1e-5), (size, name)
                assert torch.equal(tensor, ranks[0][name]), (size, name)
