"""The number of ranks over which environments are distributed does not change a run."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import NEVER, NextStepEnvs, assemble, run_ranks, scripted, train
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.world.solo import Solo

SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"),), (NEVER,), ((1, "terminated"), (6, "truncated")))


def trained(world: Any, pool: Any, config: Config) -> dict[str, torch.Tensor]:
    each = len(SCRIPTS) // world.size
    first = world.rank * each
    makers = scripted(SCRIPTS[first : first + each], spaces.Box(-1, 1, (2,), np.float32), first)
    parts = assemble(config, pool(makers, first_env=first), world, first)
    session = train(parts, iterations=3)
    learned = {**parts.policy.state_dict(), **{f"rewards.{name}": x for name, x in parts.reward_scaler.state_dict().items()}}
    return {"step": torch.tensor(session.step), **learned}


SETTINGS: list[dict[str, Any]] = [
    {"compute": "numpy"},
    {"compute": "autograd"},
    {"memory": "lstm", "memory_size": 6},  # two sequences for each environment in four minibatches
    {"memory": "gru", "memory_size": 6, "sequence_length": 2, "trunk": "shared", "num_minibatches": 3, "accumulate": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.get("memory") or settings["compute"])
@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_one_two_and_four_ranks_learn_the_same(pool: Any, settings: dict[str, Any]) -> None:
    # T is not divisible by the number of minibatches, and dummy steps give ranks different numbers of valid rows.
    base = Config(
        num_envs=4,
        rollout_steps=6,
        num_minibatches=4,
        total_steps=960,
        hidden_sizes=(8,),
        normalize_observations=True,
        normalize_rewards=True,
        target_kl=1.0,
    )
    config = base.replace(**settings).validate()
    expected = run_ranks(1, lambda world: trained(world, pool, config))[0]
    for size in (2, 4):
        ranks = run_ranks(size, lambda world: trained(world, pool, config))
        for learned in ranks:
            assert learned.keys() == expected.keys()
            for name, tensor in learned.items():
                assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-4, atol=1e-5), (size, name)
                assert torch.equal(tensor, ranks[0][name]), (size, name)


class CountingWorld(Solo):
    """Counts messages and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.bytes = 0

    def sum_(self, tensor: torch.Tensor) -> None:
        self.messages += 1
        self.bytes += tensor.nbytes


@pytest.mark.parametrize(("accumulate", "normalize"), [(1, False), (2, True)])
def test_messages_and_bytes_are_those_of_the_formula(accumulate: int, normalize: bool) -> None:
    """The formula is in docs/distributed.md; accumulating gradients does not add messages."""
    epochs, num_minibatches = 3, 4
    config = Config(
        num_envs=4,
        rollout_steps=6,
        num_minibatches=num_minibatches,
        epochs=epochs,
        accumulate=accumulate,
        normalize_rewards=normalize,
        normalize_observations=normalize,
        compute="autograd",
        hidden_sizes=(8,),
    )
    world = CountingWorld()
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, spaces.Box(-1, 1, (2,), np.float32))), world)
    train(parts, iterations=1)
    harness_messages = 1
    assert world.messages - harness_messages == epochs * (num_minibatches + 1) + 4 + 2 * normalize
    gradients = 4 * epochs * num_minibatches * (len(parts.parameters.values) + 6)
    assert gradients < world.bytes < gradients + 1000


def test_the_step_budget_is_counted_over_all_ranks_in_time_order() -> None:
    """Which steps of the last rollout count does not depend on the number of ranks, even with dummy steps."""
    config = Config(num_envs=4, rollout_steps=6, num_minibatches=2, total_steps=72, hidden_sizes=(4,))

    def counted(world: Any) -> list[Any]:
        each = 4 // world.size
        first = world.rank * each
        makers = scripted(SCRIPTS[first : first + each], spaces.Box(-1, 1, (2,), np.float32), first)
        return train(assemble(config, NextStepEnvs(makers, first_env=first), world, first)).valid

    alone = run_ranks(1, counted)[0]
    assert len(alone) == 4  # one more than without dummy steps
    assert sum(valid.sum() for valid in alone) == 72
    assert not alone[-1].all()
    for size in (2, 4):
        spread = run_ranks(size, counted)
        for iteration, valid in enumerate(alone):
            np.testing.assert_array_equal(np.concatenate([rank[iteration] for rank in spread], axis=1), valid)


@pytest.mark.parametrize("settings", SETTINGS[:3], ids=lambda settings: settings.get("memory") or settings["compute"])
def test_a_rank_may_have_no_row_of_a_minibatch(settings: dict[str, Any]) -> None:
    """This happens if its environments have fewer steps, or sequences, than there are minibatches."""
    config = Config(num_envs=4, rollout_steps=2, num_minibatches=4, total_steps=8, hidden_sizes=(4,)).replace(**settings)
    expected = run_ranks(1, lambda world: trained(world, InProcessEnvs, config))[0]
    for learned in run_ranks(4, lambda world: trained(world, InProcessEnvs, config)):
        for name, tensor in learned.items():
            assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-4, atol=1e-5), name
