"""Running statistics compared with numpy over all rows at once; scaled rewards compared with a plain loop."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from harness import NextStepEnvs, assemble, collect, make_rollout, run_ranks, scripted
from proxrl.collect.rewards import RewardScaler
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.look.evaluation import run_episodes
from proxrl.policy.preprocess import Whiten
from proxrl.policy.statistics import RunningMoments
from proxrl.types import Rollout
from proxrl.world.solo import Solo


def rollout_of(reward: Any, **flags: Any) -> Rollout:
    arrays = {name: np.asarray(flag, np.bool_) for name, flag in flags.items() if flag is not None}
    return make_rollout(reward=np.asarray(reward, np.float32), **arrays)


# --- moments ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e6])
def test_merging_many_chunks_equals_numpy_on_all_rows(offset: float) -> None:
    rng = np.random.default_rng(0)
    moments = RunningMoments((3,))
    chunks = []
    for size in (1, 0, 7, 1, 100, 0, 1000, 2, *rng.integers(0, 50, 30)):
        chunk = (offset + rng.normal([0, 5, -5], [1, 2, 30], (size, 3)) + rng.normal()).astype(np.float32)
        chunks.append(chunk)
        moments.merge(chunk, Solo())
        rows = np.concatenate(chunks).astype(np.float64)
        assert int(moments.count) == len(rows)
        assert np.allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-6 if offset else 1e-5, atol=1e-5)
        assert np.allclose(moments.variance.numpy(), rows.var(0), rtol=1e-4, atol=1e-4)


def test_a_slow_drift_far_from_zero_is_tracked() -> None:
    """In single precision alone, the changes of the mean would be lost to rounding."""
    rng = np.random.default_rng(0)
    moments = RunningMoments((1,))
    chunks = [(1e5 + 0.002 * k + rng.normal(size=(64, 1))).astype(np.float32) for k in range(1000)]
    for chunk in chunks:
        moments.merge(chunk, Solo())
    rows = np.concatenate(chunks).astype(np.float64)
    assert float(moments.mean) == pytest.approx(rows.mean(), abs=0.01)
    assert float(moments.variance) == pytest.approx(rows.var(), rel=1e-3)


def test_no_rows_leave_the_initial_statistics_unchanged() -> None:
    moments = RunningMoments((2,))
    moments.merge(np.zeros((0, 2), np.float32), Solo())
    assert (int(moments.count), moments.mean.tolist(), moments.variance.tolist()) == (0, [0, 0], [1, 1])


def test_one_constant_row_has_no_variance() -> None:
    moments = RunningMoments(())
    for _ in range(3):
        moments.merge(np.array([123456.7]), Solo())
    assert float(moments.mean) == pytest.approx(123456.7, rel=1e-7)
    assert 0 <= float(moments.variance) < 1e-4


def test_ranks_with_different_means_merge_into_the_pooled_statistics() -> None:
    """Averaging the variances of ranks would miss the offset between their means, so their statistics would drift apart."""
    rng = np.random.default_rng(1)
    chunks = [[rng.normal(100 * rank, 1 + rank, (int(rng.integers(0, 20)), 2)) for _ in range(5)] for rank in range(3)]

    def merged(world: Any) -> list[Any]:
        moments = RunningMoments((2,))
        for chunk in chunks[world.rank]:
            moments.merge(chunk, world)
        return [moments.count, moments.mean, moments.variance]

    ranks = run_ranks(3, merged)
    rows = np.concatenate([chunk for rank in chunks for chunk in rank])
    for count, mean, variance in ranks:
        assert int(count) == len(rows)
        assert np.allclose(mean, rows.mean(0), rtol=1e-5)
        assert np.allclose(variance, rows.var(0), rtol=1e-5)
        assert torch.equal(mean, ranks[0][1])
        assert torch.equal(variance, ranks[0][2])


# --- rewards ------------------------------------------------------------------------------------------------------------------


def running_returns(rollouts: list[Rollout], gamma: float) -> NDArray[np.float64]:
    """Return the discounted returns up to each valid step, environment by environment, episode by episode."""
    result = []
    for n in range(rollouts[0].reward.shape[1]):
        total = 0.0
        for rollout in rollouts:
            for t in range(len(rollout.reward)):
                if rollout.valid[t, n]:
                    total = gamma * total + float(rollout.reward[t, n])
                    result.append(total)
                if rollout.terminated[t, n] or rollout.truncated[t, n]:
                    total = 0.0
    return np.array(result)


def test_rewards_are_divided_by_the_standard_deviation_of_the_running_return_and_not_centered() -> None:
    rng = np.random.default_rng(0)
    scaler = RewardScaler(3, normalize=True, clip=None)
    rollouts = []
    for _ in range(6):
        terminated, truncated = rng.random((2, 20, 3)) < 0.1
        rollouts.append(rollout_of(rng.normal(5, 1, (20, 3)), terminated=terminated, truncated=truncated & ~terminated))
        scaled = scaler.scale(rollouts[-1], 0.9, Solo())
        std = running_returns(rollouts, 0.9).std()
        assert scaled.dtype == np.float32
        assert np.allclose(scaled, rollouts[-1].reward / std, rtol=1e-4)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_the_running_return_is_reset_by_termination_and_truncation(kind: str) -> None:
    scaler = RewardScaler(1, normalize=True, clip=None)
    scaler.scale(rollout_of([[4], [4], [4]], **{kind: [[0], [1], [0]]}), 0.5, Solo())
    # Returns 4, 6, then 4 again; half of the last one is carried into the next rollout.
    assert scaler.running_return.tolist() == [2]
    assert float(scaler.moments.mean) == pytest.approx(14 / 3)
    scaler.scale(rollout_of([[1]]), 0.5, Solo())
    assert float(scaler.moments.mean) == pytest.approx((14 + 3) / 4)


def test_dummy_steps_do_not_enter_the_running_return() -> None:
    scaler = RewardScaler(1, normalize=True, clip=None)
    scaler.scale(rollout_of([[4], [999], [4]], terminated=[[1], [0], [0]], valid=[[1], [0], [1]]), 0.5, Solo())
    assert int(scaler.moments.count) == 2
    assert float(scaler.moments.mean) == pytest.approx(4)
    assert float(scaler.moments.variance) == pytest.approx(0, abs=1e-6)


def test_scaled_rewards_are_clipped_after_the_division() -> None:
    scaler = RewardScaler(1, normalize=True, clip=1.5)
    # With a discount factor of 0 the returns are the rewards: standard deviation 10.
    assert scaler.scale(rollout_of([[-10], [10], [-10], [10]]), 0.0, Solo()).ravel().tolist() == pytest.approx([-1, 1, -1, 1])
    scaled = scaler.scale(rollout_of([[0], [0], [0], [1000]]), 0.0, Solo())
    assert scaled.ravel().tolist() == [0, 0, 0, 1.5]


def test_clipping_works_without_normalization_and_both_can_be_off() -> None:
    reward = [[-7.0], [0.5], [9.0]]
    assert RewardScaler(1, False, None).scale(rollout_of(reward), 0.9, Solo()).tolist() == reward
    assert RewardScaler(1, False, 1.0).scale(rollout_of(reward), 0.9, Solo()).tolist() == [[-1.0], [0.5], [1.0]]


def test_scaling_does_not_change_the_rewards_of_the_rollout() -> None:
    rollout = rollout_of([[1.0], [100.0]])
    RewardScaler(1, True, 0.1).scale(rollout, 0.9, Solo())
    assert rollout.reward.tolist() == [[1], [100]]


# --- when statistics change ---------------------------------------------------------------------------------------------------


def statistics(parts: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in parts.policy.preprocess.state_dict().items()}


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_whitening_is_frozen_during_rollouts_and_evaluation(compute: str) -> None:
    config = Config(num_envs=2, rollout_steps=10, normalize_observations=True, compute=compute, hidden_sizes=(4,))
    scripts = (((3, "truncated"),), ((4, "terminated"),))
    parts = assemble(config, InProcessEnvs(scripted(scripts)))
    before = statistics(parts)
    rollout = collect(parts)
    parts.compute.evaluate(rollout)
    assert same(before, statistics(parts))
    parts.policy.preprocess.merge(rollout.obs, rollout.valid, parts.world)
    merged = statistics(parts)
    assert not same(before, merged)
    rows = rollout.obs[:-1].reshape(-1, 3)
    assert np.allclose(merged["moments.mean"], rows.mean(0), atol=1e-6)
    assert np.allclose(merged["moments.variance"], rows.var(0), atol=1e-5)
    environments = InProcessEnvs(scripted(scripts))
    run_episodes(environments, parts.compute, parts.policy, 2, seed=0, deterministic=False)
    assert same(merged, statistics(parts))


def test_observations_of_dummy_steps_do_not_enter_the_statistics() -> None:
    parts = assemble(Config(num_envs=1, rollout_steps=11, num_minibatches=1, normalize_observations=True), NextStepEnvs(
        scripted((((2, "terminated"),),))
    ))  # fmt: skip
    rollout = collect(parts)
    parts.policy.preprocess.merge(rollout.obs, rollout.valid, parts.world)
    moments = parts.policy.preprocess.moments
    # Steps 0, 1, then the dummy step, which observes time 2: over 11 steps that is 4 x 0, 4 x 1, 3 x 2.
    assert rollout.obs[:-1, 0, 2].tolist() == [0, 1, 2] * 3 + [0, 1]
    assert int(moments.count) == 8
    assert float(moments.mean[2]) == pytest.approx(0.5)


def test_whitening_has_statistics_for_each_element_of_any_shape() -> None:
    whiten = Whiten(spaces.Box(-9, 9, (2, 2), np.float32), None)
    rng = np.random.default_rng(0)
    obs = rng.normal([[0, 10], [20, 30]], [[1, 2], [3, 4]], (6, 3, 2, 2)).astype(np.float32)
    valid = rng.random((5, 3)) < 0.7
    whiten.merge(obs, valid, Solo())
    rows = obs[:-1][valid]
    assert np.allclose(whiten.moments.mean, rows.mean(0), atol=1e-5)
    white = whiten(torch.from_numpy(obs[:-1][valid]))
    assert white.shape == (valid.sum(), 2, 2)
    assert white.mean(0).abs().max() < 1e-5
    assert np.allclose(white.numpy().std(0), 1, atol=1e-4)
