"""Distributions compared with torch.distributions, samples with probabilities, and the conversion of actions for the env."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from any_space import SEEDS, boxes
from proxrl.config import Config
from proxrl.policy.continuous_heads import GaussianHead
from proxrl.policy.distributions import Categorical, Gaussian
from proxrl.policy.heads import CategoricalHead, Head, env_actions
from proxrl.policy.make_head import make_head
from proxrl.policy.preprocess import OneHot, make_preprocess


def test_categorical_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn((50, 5), generator=generator)
    action = torch.randint(0, 5, (50,), generator=generator)
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    assert torch.allclose(ours.log_prob(action), theirs.log_prob(action), atol=1e-6)
    assert torch.allclose(ours.entropy(), theirs.entropy(), atol=1e-6)
    assert torch.equal(ours.mode(), theirs.probs.argmax(-1))


def test_categorical_entropy_is_finite_if_an_action_is_certain() -> None:
    certain = Categorical(torch.tensor([[0.0, 90.0, -90.0]]))
    assert certain.entropy().item() == pytest.approx(0, abs=1e-6)
    assert certain.log_prob(torch.tensor([2])).item() == pytest.approx(-180)


def test_gaussian_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, action = torch.randn((2, 50, 3), generator=generator)
    log_std = torch.tensor([-1.0, 0.0, 0.5])
    ours, theirs = Gaussian(mean, log_std), torch.distributions.Normal(mean, log_std.exp())
    assert torch.allclose(ours.log_prob(action), theirs.log_prob(action).sum(-1), atol=1e-5)
    assert torch.allclose(ours.entropy(), theirs.entropy().sum(-1), atol=1e-6)
    assert torch.equal(ours.mode(), mean)


def test_gaussian_entropy_by_hand() -> None:
    # Half of log(2 pi e sigma^2) per component.
    entropy = Gaussian(torch.zeros(4, 2), torch.log(torch.tensor([1.0, 3.0]))).entropy()
    expected = 0.5 * math.log(2 * math.pi * math.e) + 0.5 * math.log(2 * math.pi * math.e * 9)
    assert entropy.tolist() == pytest.approx([expected] * 4)


def test_sampling_frequencies_match_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    head = CategoricalHead(spaces.Discrete(4))
    draws = 40_000
    noise = torch.from_numpy(head.noise(np.random.default_rng(0), draws))
    logits = torch.from_numpy(np.log(probabilities)).float() + 7  # not normalized on purpose
    counts = np.bincount(Categorical(logits.expand(draws, 4)).sample(noise), minlength=4)
    chi_square = ((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert chi_square < 16.3  # exceeded with probability 0.001, for three degrees of freedom


def test_gaussian_samples_have_the_mean_and_standard_deviation() -> None:
    head = GaussianHead(spaces.Box(-1, 1, (2,), np.float32), 0.0, "independent")
    draws = 40_000
    noise = torch.from_numpy(head.noise(np.random.default_rng(0), draws))
    sample = Gaussian(torch.tensor([1.0, -2.0]).expand(draws, 2), torch.log(torch.tensor([0.5, 2.0]))).sample(noise)
    assert sample.mean(0).tolist() == pytest.approx([1, -2], abs=0.04)
    assert sample.std(0).tolist() == pytest.approx([0.5, 2], rel=0.02)
    assert abs(np.corrcoef(sample.T.numpy())[0, 1]) < 0.02


def test_noise_differs_between_steps_and_is_determined_by_its_generator() -> None:
    for head in (CategoricalHead(spaces.Discrete(4)), GaussianHead(spaces.Box(-1, 1, (2, 2), np.float32), 0.0, "independent")):
        noise = head.noise(np.random.default_rng(5), 10)
        assert noise.dtype == np.float32
        assert noise.shape == (10, 4)
        assert len(np.unique(noise)) == 40
        assert np.array_equal(noise, head.noise(np.random.default_rng(5), 10))


@pytest.mark.parametrize("start", [0, 3, -2])
def test_discrete_actions_begin_at_the_start_of_the_space(start: int) -> None:
    space = spaces.Discrete(4, start=start)
    head = CategoricalHead(space)
    actions = env_actions(head, np.arange(4))
    assert actions.tolist() == [start, start + 1, start + 2, start + 3]
    assert all(space.contains(action) for action in actions)


def test_box_actions_are_clipped_to_their_bounds_and_shaped_as_the_space() -> None:
    low = np.array([[-1.0, -np.inf], [0.0, -2.0]], np.float32)
    high = np.array([[1.0, np.inf], [np.inf, -1.0]], np.float32)
    head = GaussianHead(spaces.Box(low, high, dtype=np.float32), 0.0, "independent")
    sample = np.array([[5, 5, 5, 5], [-5, -5, -5, -5], [0.5, 1e6, 0.5, -1.5]], np.float32)
    action = env_actions(head, sample)
    assert action.shape == (3, 2, 2)
    assert action.reshape(3, 4).tolist() == [[1, 5, 5, -1], [-1, -5, 0, -2], [0.5, 1e6, 0.5, -1.5]]
    assert sample[0].tolist() == [5, 5, 5, 5]  # the update uses the sample, so it must not change


def by_numpy(space: spaces.Box, distribution: str, sample: NDArray[np.float32]) -> NDArray[np.floating]:
    """Return the expected actions for the environment, in double precision except for the clipped Gaussian."""
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if distribution == "clip":
        return np.minimum(np.maximum(sample, low), high).reshape(len(sample), *space.shape).astype(space.dtype)
    low, high = low.astype(np.float64), high.astype(np.float64)
    unit = sample.astype(np.float64) if distribution == "beta" else (np.tanh(sample.astype(np.float64)) + 1) / 2
    return (low + (high - low) * unit).reshape(len(sample), *space.shape)


@given(st.data(), st.sampled_from(["clip", "tanh", "beta"]), SEEDS)
@settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow], database=None)
def test_box_actions_equal_those_of_numpy_and_stay_within_the_bounds(data: Any, distribution: str, seed: int) -> None:
    space = data.draw(boxes(bounded=distribution != "clip"))
    head = make_head(space, Config(action_distribution=distribution))
    rng = np.random.default_rng(seed)
    sample = rng.normal(0, 10 ** rng.uniform(-2, 2), (9, *head.layout.shape)).astype(np.float32)
    sample[0] = 0.0
    if distribution == "beta":
        sample = 0.5 + 0.5 * np.tanh(sample)
    action, expected = env_actions(head, sample), by_numpy(space, distribution, sample)
    assert action.dtype == space.dtype
    assert action.shape == expected.shape
    assert all(space.contains(np.asarray(row)) for row in action)
    if distribution == "clip":
        np.testing.assert_array_equal(action, expected)
    else:
        # Rounding errors are proportional to the bounds.
        size = np.maximum(np.abs(space.low), np.abs(space.high)).astype(np.float64)
        assert (np.abs(action - expected) <= 4 * np.finfo(np.float32).eps * size).all()


@pytest.mark.parametrize("distribution", ["tanh", "beta"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_width_of_the_widest_box_does_not_overflow(dtype: type[np.floating], distribution: str) -> None:
    limit = min(float(np.finfo(dtype).max), 8e307)
    space = spaces.Box(-limit, limit, (2,), dtype)
    head = make_head(space, Config(action_distribution=distribution))
    sample = np.array([[0, 0.25], [0.5, 1]] if distribution == "beta" else [[-90, -0.5], [0, 90]], np.float32)
    action = env_actions(head, sample)
    assert all(space.contains(row) for row in action)
    assert action[[0, 1, 1], [0, 0, 1]].tolist() == [float(dtype(-limit)), 0, float(dtype(limit))]


def test_env_actions_never_share_memory_with_what_is_learned_from() -> None:
    discrete = [spaces.Discrete(3), spaces.Discrete(3, start=1), spaces.Discrete(3, dtype=np.int32)]
    for space in (*discrete, spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])):
        head = make_head(space, Config())
        action = np.zeros((4, *head.layout.shape), head.layout.dtype)
        converted = env_actions(head, action)
        assert converted.dtype == space.dtype
        assert not np.shares_memory(converted, action), space


@pytest.mark.parametrize("distribution", ["clip", "tanh", "beta"])
def test_actions_are_converted_on_their_device_by_constants_that_are_not_saved(distribution: str) -> None:
    box = spaces.Box(-1, 1, (2,), np.float64)
    for space in (box, spaces.MultiDiscrete([2, 3])):
        head = make_head(space, Config(action_distribution=distribution))
        assert set(head.state_dict()) <= {"log_std"}
        # The actions of a policy on another device are converted on the host, where float64 exists.
        host_action = np.zeros((4, 2), head.layout.dtype)
        assert env_actions(head.to("meta"), host_action).shape == (4, 2)
        assert head.to_env(torch.from_numpy(host_action).to("meta")).device.type == "meta"


def test_heads_are_abstract() -> None:
    class Incomplete(Head):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete()  # type: ignore[abstract]


def test_standard_deviation_has_its_initial_value_and_does_not_depend_on_the_features() -> None:
    head = GaussianHead(spaces.Box(-1, 1, (2,), np.float32), -0.5, "independent")
    for features in torch.randn((2, 4, 2), generator=torch.Generator().manual_seed(0)):
        assert head(features).log_std.tolist() == [-0.5, -0.5]


def test_one_hot_observations_begin_at_the_start_of_the_space() -> None:
    one_hot = make_preprocess(spaces.Discrete(3, start=5), True, 10.0)
    assert isinstance(one_hot, OneHot)
    assert one_hot(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
