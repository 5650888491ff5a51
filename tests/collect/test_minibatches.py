"""Partitions into minibatches and normalized advantages, for any number of ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import run_ranks
from proxrl.build import build_compute
from proxrl.collect.minibatches import Minibatches, layout, moments, shuffle
from proxrl.common.seeding import Purpose, generator
from proxrl.config import Config
from proxrl.engine.api import Compute
from proxrl.engine.flat import FlatParameters
from proxrl.envs.gymnasium import make_env
from proxrl.policy.networks import make_policy
from proxrl.types import Batch
from proxrl.world.solo import Solo

COMPUTES = ("numpy", "autograd")


def make_compute(kind: str) -> Compute:
    config = Config(compute=kind, hidden_sizes=(4,))
    env = make_env("CartPole-v1")
    policy = make_policy(config, env.observation_space, env.action_space)
    return build_compute(config, policy, FlatParameters(policy.groups()))


def streams(num_envs: int, first_env: int = 0, iteration: int = 0) -> list[np.random.Generator]:
    return [generator(1, Purpose.ROLLOUT, env, iteration) for env in range(first_env, first_env + num_envs)]


def partition(
    sources: Sequence[np.random.Generator], steps: int, num_minibatches: int, first_env: int = 0
) -> list[NDArray[np.int64]]:
    """Return the rows of each minibatch of one epoch."""
    order, owner, sizes = layout(len(sources), steps, num_minibatches, first_env)
    rows = shuffle(sources, steps, order)
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    assert [set(part) for part in np.split(owner, np.cumsum(sizes)[:-1])] == [
        {m} if size else set() for m, size in enumerate(sizes)
    ]
    return parts


SHAPES = [(1, 8, 4), (4, 128, 4), (4, 6, 4), (3, 5, 1), (8, 1, 4), (2, 3, 6), (6, 10, 4), (4, 7, 14), (5, 4, 10)]


@pytest.mark.parametrize(("num_envs", "steps", "num_minibatches"), SHAPES)
def test_an_epoch_is_a_permutation_in_equal_parts(num_envs: int, steps: int, num_minibatches: int) -> None:
    parts = partition(streams(num_envs), steps, num_minibatches)
    assert sorted(np.concatenate(parts)) == list(range(num_envs * steps))
    assert {len(part) for part in parts} == {num_envs * steps // num_minibatches}


@pytest.mark.parametrize(("num_envs", "steps", "num_minibatches"), SHAPES)
def test_every_minibatch_takes_an_equal_share_of_each_environment(num_envs: int, steps: int, num_minibatches: int) -> None:
    for part in partition(streams(num_envs), steps, num_minibatches):
        shares = np.bincount(part % num_envs, minlength=num_envs)
        assert shares.min() >= steps // num_minibatches
        assert shares.max() <= steps // num_minibatches + 1


def in_global_coordinates(parts: list[NDArray[np.int64]], num_envs: int, first_env: int) -> list[set[tuple[int, int]]]:
    return [{(int(row) // num_envs, first_env + int(row) % num_envs) for row in part} for part in parts]


@pytest.mark.parametrize(("steps", "num_minibatches"), [(16, 4), (6, 4), (5, 8), (3, 4)])
def test_the_partition_does_not_depend_on_the_number_of_ranks(steps: int, num_minibatches: int) -> None:
    whole = in_global_coordinates(partition(streams(8), steps, num_minibatches), 8, 0)
    for ranks in (2, 4, 8):
        share = 8 // ranks
        united: list[set[tuple[int, int]]] = [set() for _ in range(num_minibatches)]
        for first in range(0, 8, share):
            for m, rows in enumerate(
                in_global_coordinates(partition(streams(share, first), steps, num_minibatches, first), share, first)
            ):
                united[m] |= rows
        assert united == whole


def test_each_environment_is_shuffled_by_its_own_stream() -> None:
    both = partition(streams(2), 64, 1)[0]
    orders = [(both[both % 2 == n] // 2).tolist() for n in range(2)]
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])
    # Another second environment changes nothing for environment 0.
    other = partition([streams(1)[0], generator(9, Purpose.ROLLOUT, 9)], 64, 1)[0]
    assert (other[other % 2 == 0] // 2).tolist() == orders[0]


# --- advantages and weights ---------------------------------------------------------------------------------------------------


def make_batch(compute: Compute, rows: int, weight: Any, advantage: Any) -> Batch:
    """Return a batch in which every column contains the number of the row."""
    number = np.arange(rows, dtype=np.float32)
    columns = (number[:, None] + 100, np.arange(rows), number, number + 0.5, np.asarray(advantage, np.float32), -number)
    starts = np.zeros(rows, np.bool_)
    return Batch(*map(compute.array, (*columns, np.asarray(weight, np.float32), np.arange(rows), starts)), state=())


def make_config(**changes: Any) -> Config:
    return Config(**{"num_envs": 4, "rollout_steps": 10, "num_minibatches": 4, "epochs": 3, **changes})


def run(compute: Compute, config: Config, weight: Any, advantage: Any) -> list[Batch]:
    batch = make_batch(compute, 40, weight, advantage)
    original = np.array(batch.advantage)
    result = list(Minibatches(config, compute, Solo(), 0).draw(batch, streams(4), config.epochs))
    assert np.array_equal(original, np.asarray(batch.advantage))
    return result


@pytest.mark.parametrize("kind", COMPUTES)
def test_all_columns_of_a_row_stay_together_and_epochs_differ(kind: str) -> None:
    rng = np.random.default_rng(0)
    result = run(make_compute(kind), make_config(advantage_norm="off"), np.ones(40), rng.normal(size=40))
    assert len(result) == 12
    orders = []
    for minibatch in result:
        rows = np.asarray(minibatch.action)
        assert np.array_equal(np.asarray(minibatch.obs)[:, 0], rows + 100)
        assert np.array_equal(minibatch.log_prob, rows)
        assert np.array_equal(minibatch.value, rows + 0.5)
        assert np.array_equal(minibatch.target, -rows)
        orders.append(rows.tolist())
    epochs = [[row for part in orders[start : start + 4] for row in part] for start in (0, 4, 8)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3
    assert set(orders[0]) != set(orders[4]) != set(orders[8])


@pytest.mark.parametrize("kind", COMPUTES)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("mode", ["minibatch", "batch", "off"])
def test_advantages_are_normalized_per_minibatch_or_per_batch_or_not_at_all(mode: str, offset: float, kind: str) -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 2, 40)
    advantage = (rng.normal(offset, 3, 40)).astype(np.float32)
    advantage[weight == 0] = 1e5  # rows that do not count must not move the mean
    exact = advantage.astype(np.float64)
    for minibatch in run(make_compute(kind), make_config(advantage_norm=mode), weight, advantage):
        rows = np.asarray(minibatch.action)
        counted = rows[weight[rows] == 1]
        group = {"minibatch": counted, "batch": np.flatnonzero(weight), "off": None}[mode]
        expected = exact[counted]
        if group is not None:
            expected = (expected - exact[group].mean()) / (exact[group].std(ddof=1) + 1e-8)
        assert np.allclose(np.asarray(minibatch.advantage)[weight[rows] == 1], expected, rtol=2e-3, atol=2e-3)
        assert np.allclose(minibatch.weight, weight[rows] / len(counted))


@pytest.mark.parametrize("kind", COMPUTES)
@pytest.mark.parametrize("valid", [0, 1, 2])
@pytest.mark.parametrize("mode", ["minibatch", "batch", "off"])
def test_minibatches_with_hardly_any_valid_row_stay_finite(mode: str, valid: int, kind: str) -> None:
    weight = np.zeros(40)
    weight[:valid] = 1
    for minibatch in run(make_compute(kind), make_config(advantage_norm=mode), weight, np.linspace(-3, 5, 40)):
        assert np.isfinite(np.asarray(minibatch.advantage)).all()
        counted = float(minibatch.weight.sum())
        assert counted == pytest.approx(1) or counted == 0
        if counted and (np.asarray(minibatch.weight) > 0).sum() == 1 and mode == "minibatch":
            assert float(minibatch.advantage @ minibatch.weight) == 0


@pytest.mark.parametrize("kind", COMPUTES)
def test_equal_advantages_become_zero(kind: str) -> None:
    for minibatch in run(make_compute(kind), make_config(), np.ones(40), np.full(40, 0.3)):
        assert np.abs(np.asarray(minibatch.advantage)).max() < 1e-3


@pytest.mark.parametrize("kind", COMPUTES)
def test_moments_of_weighted_groups(kind: str) -> None:
    compute = make_compute(kind)
    values = np.array([1, 2, 4, 9, 5, 7], np.float32)
    weight = np.array([1, 1, 1, 0, 1, 0], np.float32)
    owner = np.array([0, 0, 0, 0, 1, 1])
    result = moments(*map(compute.array, (values, weight, owner)), 3, compute, Solo())
    assert result.count.tolist() == [3, 1, 0]
    assert result.mean.tolist() == pytest.approx([7 / 3, 5, 0])
    assert result.std.tolist() == pytest.approx([np.std([1, 2, 4], ddof=1), 1e-8, 1e-8], rel=1e-6)


@pytest.mark.parametrize("kind", COMPUTES)
@pytest.mark.parametrize("mode", ["minibatch", "batch", "off"])
def test_two_ranks_of_two_environments_equal_one_of_four(mode: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    config = make_config(advantage_norm=mode, rollout_steps=6)
    weight, advantage = rng.integers(0, 2, (6, 4)), rng.normal(3, 2, (6, 4))
    weight[:, 0] = 0  # so that the ranks have different numbers of valid rows
    compute = make_compute(kind)

    def rows_of(num_envs: int, first: int, world: Any) -> list[dict[int, tuple[float, float]]]:
        part = slice(first, first + num_envs)
        batch = make_batch(compute, 6 * num_envs, weight[:, part].ravel(), advantage[:, part].ravel())
        result = []
        for minibatch in Minibatches(config, compute, world, first).draw(batch, streams(num_envs, first), config.epochs):
            rows = np.asarray(minibatch.action)
            keys = (rows // num_envs * 4 + first + rows % num_envs).tolist()
            result.append(dict(zip(keys, zip(minibatch.advantage.tolist(), minibatch.weight.tolist(), strict=True), strict=True)))
        return result

    whole = rows_of(4, 0, Solo())
    halves = run_ranks(2, lambda world: rows_of(2, 2 * world.rank, world))
    for expected, first, second in zip(whole, *halves, strict=True):
        united = first | second
        assert united.keys() == expected.keys()
        for key, numbers in expected.items():
            assert united[key] == pytest.approx(numbers, rel=1e-4, abs=1e-5)
