"""For random spaces: actions are elements of their space, probabilities sum to one, networks get whole observations."""

import copy
import itertools
import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from any_space import (
    SEEDS,
    action_spaces,
    boxes,
    discrete_leaves,
    discretes,
    is_element,
    leaves_of,
    nested,
    observation_spaces,
    random_mask,
    taken_bits,
)
from harness import make_rollout
from proxrl.build import build_compute
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.engine.api import Outputs
from proxrl.engine.flat import FlatParameters
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.envs.buffers import allocate, stored_space, write_row
from proxrl.envs.gymnasium import _row_reader
from proxrl.envs.spaces import Masked, space_from_json, space_to_json
from proxrl.policy.continuous_heads import BetaHead, GaussianHead, TanhHead
from proxrl.policy.distributions import Bernoulli, SquashedGaussian
from proxrl.policy.heads import Head, env_actions
from proxrl.policy.make_head import ProductHead, make_head
from proxrl.policy.networks import make_policy
from proxrl.policy.policy import Policy
from proxrl.policy.preprocess import make_preprocess
from proxrl.policy.statistics import EPSILON
from proxrl.types import Batch, Terms, Tree
from proxrl.world.solo import Solo

DISTRIBUTIONS = ("clip", "tanh", "beta")
STDS = ("independent", "state", "fixed")
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def many(examples: int) -> settings:
    return settings(deadline=None, derandomize=True, max_examples=examples, suppress_health_check=SLOW, database=None)


def random_inputs(head: Head, rng: np.random.Generator, rows: int, scale: float = 1.5) -> Tensor:
    return torch.from_numpy(rng.normal(0, scale, (rows, head.inputs)).astype(np.float32))


def noise_of(head: Head, rng: np.random.Generator, rows: int) -> Tensor:
    return torch.from_numpy(head.noise(rng, rows))


def stored(head: Head, sample: Tensor) -> Tensor:
    """Return the sample after storing it in an array like a rollout's."""
    array = np.empty((len(sample), *head.layout.shape), head.layout.dtype)
    array[:] = sample.numpy()
    return torch.from_numpy(array)


# --- actions --------------------------------------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(DISTRIBUTIONS), st.sampled_from(STDS), SEEDS, st.booleans())
@many(70)
@torch.no_grad()
def test_actions_are_elements_of_their_space_and_can_be_stored(
    data: Any, distribution: str, std: str, seed: int, masked: bool
) -> None:
    space = data.draw(action_spaces(bounded=distribution != "clip"))
    rng, rows = np.random.default_rng(seed), 6
    head = make_head(space, Config(action_distribution=distribution, std=std, log_std_init=0.5))
    bits = random_mask(space, rng, rows)
    assert head.choices == bits.shape[1]
    action_distribution = head(random_inputs(head, rng, rows, 4.0), torch.from_numpy(bits).bool() if masked else None)
    for sample in (action_distribution.sample(noise_of(head, rng, rows)), action_distribution.mode()):
        assert sample.shape == (rows, *head.layout.shape)
        log_prob = action_distribution.log_prob(sample)
        assert log_prob.shape == (rows,)
        assert torch.isfinite(log_prob).all()
        assert torch.equal(action_distribution.log_prob(stored(head, sample)), log_prob)
        # The environment gets the sample itself; the update uses the stored one.
        for env_action in (env_actions(head, sample.numpy()), env_actions(head, stored(head, sample).numpy())):
            actions = list(_row_reader(space)(env_action))
            assert len(actions) == rows
            for action, allowed in zip(actions, bits, strict=True):
                assert is_element(space, action), (space, action)
                assert not masked or allowed[taken_bits(space, action)].all()


def every_choice(head: Head, space: gymnasium.Space) -> NDArray[Any]:
    """Return all actions of a discrete space, as they are stored."""
    options = []
    for leaf, _ in leaves_of(space):
        if isinstance(leaf, spaces.Discrete):
            options += [range(int(leaf.n))]
        elif isinstance(leaf, spaces.MultiDiscrete):
            options += [range(int(size)) for size in leaf.nvec.ravel()]
        else:
            options += [range(2)] * int(np.prod(leaf.shape))
    assume(math.prod(map(len, options)) <= 600)
    return np.array(list(itertools.product(*options)), head.layout.dtype).reshape(-1, *head.layout.shape)


@given(nested(discrete_leaves(), 2), SEEDS)
@many(40)
@torch.no_grad()
def test_probabilities_of_all_choices_sum_to_one(space: gymnasium.Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = make_head(space, Config())
    choices = every_choice(head, space)
    actions = list(_row_reader(space)(env_actions(head, choices)))
    needed = [taken_bits(space, action) for action in actions]
    assert len({tuple(bits) for bits in needed}) == len(choices)  # all actions are different
    inputs = random_inputs(head, rng, 1).expand(len(choices), -1)
    for bits in (np.ones(head.choices, np.int8), random_mask(space, rng, 1)[0]):
        mask = torch.from_numpy(bits).bool().expand(len(choices), -1)
        action_distribution = head(inputs, mask)
        log_prob = action_distribution.log_prob(torch.from_numpy(choices))
        probability = log_prob.double().exp().numpy()
        allowed = np.array([bits[taken].all() for taken in needed])
        assert probability.sum() == pytest.approx(1, abs=1e-5)
        assert (probability[~allowed] == 0).all()
        assert (probability[allowed] > 0).all()
        # Forbidden actions contribute nothing to the entropy.
        entropy = -(probability[allowed] * log_prob.numpy()[allowed]).sum()
        assert action_distribution.entropy()[0].item() == pytest.approx(entropy, abs=1e-4)
        assert (
            probability[np.all(choices == action_distribution.mode()[:1].numpy(), axis=tuple(range(1, choices.ndim)))]
            == probability.max()
        )
    all_allowed = head(inputs, torch.ones_like(mask)).log_prob(torch.from_numpy(choices))
    assert torch.equal(head(inputs, None).log_prob(torch.from_numpy(choices)), all_allowed)


CONTINUOUS = {
    "Gaussian": (GaussianHead, (-np.inf, np.inf)),
    "tanh": (TanhHead, (-2.0, 3.0)),
    "tanh, narrow": (TanhHead, (0.1, 0.2)),
    "Beta": (BetaHead, (-2.0, 3.0)),
    "Beta, wide": (BetaHead, (-100.0, 50.0)),
}


def one_number(kind: str, std: float) -> tuple[Head, float, float]:
    """Return the head of a single number in double precision, and the limits of the actions to integrate over."""
    make, (low, high) = CONTINUOUS[kind]
    box = spaces.Box(low, high, (1,), np.float64)
    if make is BetaHead:
        return make(box).double(), low, high
    head = make(box, math.log(std), "independent").double()
    return head, max(low, -30.0), min(high, 30.0)


def to_sample(kind: str, action: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return the sample that `to_env` maps to this action."""
    unit = (action - low) / (high - low)
    return {"G": lambda: action, "t": lambda: np.arctanh(2 * unit - 1), "B": lambda: unit}[kind[0]]()


@pytest.mark.parametrize("std", [0.3, 1.0])
@pytest.mark.parametrize("outputs", [(0.0, 0.0), (1.2, -0.7), (-0.8, 2.0)])
@pytest.mark.parametrize("kind", CONTINUOUS)
@torch.no_grad()
def test_densities_are_those_of_the_actions_for_the_environment(kind: str, outputs: tuple[float, float], std: float) -> None:
    """Densities integrate to one over the action, and up to any point, to the share of samples below it."""
    head, low, high = one_number(kind, std)
    # The midpoints of equal angles: points that are denser at both ends, where the density of tanh changes most.
    angle = (np.arange(20_000) + 0.5) * np.pi / 20_000
    actions = low + (high - low) * (1 - np.cos(angle)) / 2
    widths = (high - low) / 2 * np.sin(angle) * np.pi / 20_000
    samples = to_sample(kind, actions, low, high)[:, None]
    inside = np.abs(samples[:, 0]) < 15  # beyond this tanh has no precision left, and the probability is negligible
    samples, actions, widths = samples[inside], actions[inside], widths[inside]
    assert np.allclose(env_actions(head, samples)[:, 0], actions, rtol=0, atol=1e-9 * (high - low))
    inputs = torch.tensor([outputs[: head.inputs]], dtype=torch.float64)
    density = head(inputs.expand(len(samples), -1)).log_prob(torch.from_numpy(samples)).exp().numpy()
    assert (density * widths).sum() == pytest.approx(1, abs=1e-5)

    draws = 20_000
    noise = noise_of(head, np.random.default_rng(3), draws).double()
    sampled = head.to_env(head(inputs.expand(draws, -1)).sample(noise)).numpy()[:, 0]
    for share in (0.1, 0.5, 0.8):
        point = np.quantile(sampled, share)
        below = (density * widths)[actions < point].sum()
        assert abs(below - share) < 4 * math.sqrt(share * (1 - share) / draws)


@given(st.data(), st.sampled_from(DISTRIBUTIONS), st.sampled_from(STDS), SEEDS, st.booleans())
@many(30)
@torch.no_grad()
def test_entropy_is_the_mean_negative_log_probability(data: Any, distribution: str, std: str, seed: int, masked: bool) -> None:
    """For all spaces and products, within four standard errors of 4,000 samples."""
    space = data.draw(action_spaces(depth=2))
    rng, draws = np.random.default_rng(seed), 4000
    head = make_head(space, Config(action_distribution=distribution, std=std, log_std_init=-1.0))
    inputs = random_inputs(head, rng, 1, 0.4).expand(draws, -1)
    bits = torch.from_numpy(random_mask(space, rng, 1)).bool().expand(draws, -1)
    action_distribution = head(inputs, bits if masked else None)
    negative_log_prob = -action_distribution.log_prob(action_distribution.sample(noise_of(head, rng, draws))).double()
    numbers = sum(int(np.prod(leaf.shape)) for leaf, _ in leaves_of(space) if isinstance(leaf, spaces.Box))
    quadrature = 0.001 * numbers if distribution == "tanh" else 0.0
    tolerance = 4 * negative_log_prob.std().item() / math.sqrt(draws) + quadrature + 1e-4
    assert abs(negative_log_prob.mean().item() - action_distribution.entropy()[0].item()) < tolerance


@given(st.data(), st.sampled_from(DISTRIBUTIONS), SEEDS, st.booleans())
@many(30)
@torch.no_grad()
def test_log_probabilities_and_entropies_of_a_product_are_sums(data: Any, distribution: str, seed: int, masked: bool) -> None:
    space = data.draw(action_spaces())
    assume(isinstance(space, spaces.Dict | spaces.Tuple))
    rng, rows = np.random.default_rng(seed), 5
    config = Config(action_distribution=distribution, log_std_init=-0.3)
    head = make_head(space, config)
    assert isinstance(head, ProductHead)
    inputs, noise = random_inputs(head, rng, rows), noise_of(head, rng, rows)
    bits = torch.from_numpy(random_mask(space, rng, rows)).bool()
    action_distribution = head(inputs, bits if masked else None)
    sample = action_distribution.sample(noise)
    log_prob = entropy = torch.zeros(rows)
    begin = [0, 0, 0, 0]  # in inputs, masks, noise and actions
    for leaf, _ in leaves_of(space):
        part = make_head(leaf, config)
        sizes = part.inputs, part.choices, part.noise_size, math.prod(part.layout.shape)
        ends = [first + size for first, size in zip(begin, sizes, strict=True)]
        part_inputs, part_bits, part_noise, chosen = (
            tensor[:, first:end] for tensor, first, end in zip((inputs, bits, noise, sample), begin, ends, strict=True)
        )
        begin = ends
        part_distribution = part(part_inputs, part_bits if masked else None)
        part_sample = part_distribution.sample(part_noise)
        assert torch.equal(part_sample.reshape(rows, -1).float(), chosen)
        log_prob, entropy = log_prob + part_distribution.log_prob(part_sample), entropy + part_distribution.entropy()
    assert begin == [head.inputs, head.choices, head.noise_size, math.prod(head.layout.shape)]
    assert torch.allclose(action_distribution.log_prob(sample), log_prob, rtol=1e-5, atol=1e-4)
    assert torch.allclose(action_distribution.entropy(), entropy, rtol=1e-5, atol=1e-4)


def test_bernoulli_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn((50, 5), generator=generator)
    action = torch.randint(0, 2, (50, 5), generator=generator).float()
    ours, theirs = Bernoulli(logits), torch.distributions.Bernoulli(logits=logits)
    assert torch.allclose(ours.log_prob(action), theirs.log_prob(action).sum(-1), atol=1e-5)
    assert torch.allclose(ours.entropy(), theirs.entropy().sum(-1), atol=1e-5)
    assert torch.equal(ours.mode(), (theirs.probs > 0.5).float())


def test_beta_equals_torch() -> None:
    low, high = np.array([-2.0, 0.0, 5.0]), np.array([3.0, 0.1, 6.0])
    head = BetaHead(spaces.Box(low, high, dtype=np.float64)).double()
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(0, 3, (40, 6)))
    action_distribution = head(inputs)
    first, second = (1 + torch.nn.functional.softplus(inputs)).chunk(2, -1)
    unit = torch.distributions.Beta(first, second)
    theirs = torch.distributions.TransformedDistribution(
        unit, [torch.distributions.AffineTransform(torch.from_numpy(low), torch.from_numpy(high - low))]
    )
    sample = action_distribution.sample(noise_of(head, rng, 40).double())
    action = head.to_env(sample)
    assert torch.allclose(action_distribution.log_prob(sample), theirs.log_prob(action).sum(-1), atol=1e-7)
    width = torch.from_numpy(np.log(high - low)).sum()
    assert torch.allclose(action_distribution.entropy(), unit.entropy().sum(-1) + width, atol=1e-6)
    assert torch.allclose(action_distribution.mode(), unit.mode)


def test_tanh_equals_torch() -> None:
    low, high = np.array([-2.0, 0.0]), np.array([3.0, 0.1])
    head = TanhHead(spaces.Box(low, high, dtype=np.float64), -0.5, "state").double()
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(0, 0.8, (40, 4)))
    action_distribution = head(inputs)
    half = torch.from_numpy((high - low) / 2)
    theirs = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(inputs[:, :2], (inputs[:, 2:] - 0.5).exp()),
        [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(torch.from_numpy((low + high) / 2), half)],
    )
    sample = action_distribution.sample(noise_of(head, rng, 40).double())
    action = head.to_env(sample)
    assert torch.allclose(action_distribution.log_prob(sample), theirs.log_prob(action).sum(-1), atol=1e-6)
    median = half * inputs[:, :2].tanh() + torch.from_numpy((low + high) / 2)
    assert torch.allclose(head.to_env(action_distribution.mode()), median)


@pytest.mark.parametrize(("stds", "error"), [((0.05, 0.3, 1.0, 2.0), 1e-3), ((4.0, math.exp(2.0)), 0.1)])
def test_entropy_of_tanh_is_as_accurate_as_documented(stds: tuple[float, ...], error: float) -> None:
    """Compared with a sum over 200,001 points."""
    points = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * points**2, 0)
    log_width = torch.tensor([math.log(5.0)], dtype=torch.float64)
    for std, mean in itertools.product(stds, (0.0, 0.5, -1.5, 3.0, -8.0)):
        log_std = torch.tensor([math.log(std)], dtype=torch.float64)
        ours = SquashedGaussian(torch.tensor([[mean]], dtype=torch.float64), log_std, log_width).entropy().item()
        u = mean + std * points
        log_slope = math.log(5.0 / 2) + 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
        exact = 0.5 * math.log(2 * math.pi * math.e) + math.log(std) + (weights * log_slope).sum().item()
        assert abs(ours - exact) < error


# --- observations ---------------------------------------------------------------------------------------------------------


def filled(space: gymnasium.Space, rows: int, seed: int) -> tuple[Tree, list[Any]]:
    """Return random elements of a space as a pool stores them, [rows, ...], and as an environment returns them."""
    space.seed(seed)
    elements = [space.sample() for _ in range(rows)]
    buffer = allocate(stored_space(space), rows)
    for row, element in enumerate(elements):
        write_row(buffer, row, element)
    return buffer, elements


def unit_vector(size: int, index: int) -> list[float]:
    return [float(position == index) for position in range(size)]


def preprocessed_by_hand(leaf: gymnasium.Space, value: Any) -> NDArray[np.float64]:
    """Return the preprocessed value of one leaf, without whitening."""
    if isinstance(leaf, spaces.Discrete):
        return np.array(unit_vector(int(leaf.n), int(value) - int(leaf.start)))
    if isinstance(leaf, spaces.MultiDiscrete):
        entries = zip(leaf.nvec.ravel(), np.asarray(value).ravel(), leaf.start.ravel(), strict=True)
        return np.concatenate([unit_vector(int(size), int(number) - int(start)) for size, number, start in entries])
    return np.asarray(value, np.float64)


@given(observation_spaces(), SEEDS, st.booleans())
@many(120)
@torch.no_grad()
def test_preprocessed_observations_match_the_output_space(space: gymnasium.Space, seed: int, normalize: bool) -> None:
    rows, limit = 5, 1.5
    buffer, elements = filled(space, rows, seed)
    preprocess = make_preprocess(stored_space(space), normalize, limit)
    # The shape of a rollout of one environment. Its last row is also the first of the next rollout, and does not count.
    preprocess.merge(tree_map(lambda leaf: leaf[:, None], buffer), np.ones((rows - 1, 1), np.bool_), Solo())
    result = preprocess(tree_map(torch.from_numpy, buffer))
    outputs = list(leaves_of(preprocess.output_space, result))
    inputs = [[value for _, value in leaves_of(space, element)] for element in elements]
    assert len(outputs) == len(inputs[0])
    for number, ((leaf, _), (output_space, output)) in enumerate(zip(leaves_of(space), outputs, strict=True)):
        assert isinstance(output_space, spaces.Box)
        assert output.dtype == torch.float32
        assert output.shape == (rows, *output_space.shape)
        expected = np.stack([preprocessed_by_hand(leaf, row[number]) for row in inputs])
        if normalize and isinstance(leaf, spaces.Box):
            merged = expected[:-1].astype(np.float32).astype(np.float64)
            expected = np.clip((expected - merged.mean(0)) / np.sqrt(merged.var(0) + EPSILON), -limit, limit)
            constant = merged.var(0) < 1e-3  # whitening makes rounding errors large there
            expected, output = (np.where(constant, 0, array) for array in (expected, output.numpy()))
        assert np.isfinite(np.asarray(output)).all()
        np.testing.assert_allclose(np.asarray(output), expected, rtol=1e-4, atol=1e-4)


def randomize(policy: Policy, seed: int) -> None:
    """Change the weights so that every input matters, and the statistics so that they are not the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in policy.preprocess.named_buffers():
            if name.endswith("mean"):
                buffer += torch.randn(buffer.shape, generator=generator)
            if name.endswith("variance"):
                buffer += 3 * torch.rand(buffer.shape, generator=generator)


def policy_of(
    space: gymnasium.Space, action_space: gymnasium.Space, seed: int, masked: bool, **settings: Any
) -> tuple[Config, Policy, Tree]:
    """Return a policy for these spaces, and 6 observations with their masks."""
    rng, rows = np.random.default_rng(seed), 6
    obs, _ = filled(space, rows, seed)
    stored: gymnasium.Space = stored_space(space)
    bits = random_mask(action_space, rng, rows)
    if masked and bits.shape[1]:
        obs, stored = {"observation": obs, "action_mask": bits}, Masked(stored, bits.shape[1])
    config = Config(hidden_sizes=(8,), clip_observations=2.0, **settings)
    policy = make_policy(config, stored, action_space)
    randomize(policy, seed % 1000)
    policy.guard.check(obs)
    return config, policy, obs


def learn(config: Config, policy: Policy, obs: Tree, action: NDArray[Any], compute_kind: str) -> tuple[Any, ...]:
    """Return the outputs, and the gradient of a loss with random slopes, as an update computes them."""
    policy = copy.deepcopy(policy)
    parameters = FlatParameters(policy.groups())
    compute = build_compute(config.replace(compute=compute_kind), policy, parameters)
    rows = len(action)
    final = np.zeros(2, np.int64), np.array([1, 3])
    both = tree_map(lambda leaf: np.stack([leaf, leaf[::-1]]), obs)
    last = tree_map(lambda leaf: leaf[[0, 2]], obs)
    reward = np.zeros((1, rows), np.float32)
    rollout = make_rollout(obs=both, action=action[None], reward=reward, final_index=final, final_obs=last)
    evaluation = compute.evaluate(rollout)
    zeros = compute.array(np.zeros(rows, np.float32))
    columns = (zeros, zeros[:, None], zeros, zeros[:, None], zeros, zeros, zeros)
    outputs = compute.forward(Batch(evaluation.obs, compute.array(action), *columns, state=()))
    rng = np.random.default_rng(5)
    slopes = [rng.normal(size=shape).astype(np.float32) for shape in (rows, rows, (rows, 1))]
    compute.backward(Outputs(*map(compute.array, slopes)), list(compute.array(np.zeros(len(Terms._fields), np.float32))), [])
    evaluated = evaluation.log_prob[0], evaluation.value[0], evaluation.next_value[0]
    return *map(np.asarray, (*outputs, *evaluated)), parameters.gradient.numpy().copy()


def same(ours: Any, theirs: Any) -> bool:
    """Return whether arrays are equal up to float precision, relative to the largest number."""
    return np.allclose(ours, theirs, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(theirs).max())))


@given(observation_spaces(), st.one_of(discretes(), boxes((np.float32,), bounded=False)), SEEDS, st.booleans(), st.booleans())
@many(35)
def test_numpy_and_autograd_agree_on_any_observation(
    space: gymnasium.Space, action_space: gymnasium.Space, seed: int, masked: bool, normalize: bool
) -> None:
    config, policy, obs = policy_of(space, action_space, seed, masked, normalize_observations=normalize)
    assert NumpyCompute.supports(policy)
    starts = np.zeros(6, np.bool_)
    actions = []
    for kind in ("numpy", "autograd"):
        twin = copy.deepcopy(policy)
        compute = build_compute(config.replace(compute=kind), twin, FlatParameters(twin.groups()))
        noise = policy.head.noise(np.random.default_rng(seed), 6)
        actions.append([compute.act(obs, (), starts, given_noise)[0] for given_noise in (None, noise)])
    for ours, theirs in zip(*actions, strict=True):
        assert ours.dtype == theirs.dtype == policy.head.layout.dtype
        assert ours.shape == theirs.shape == (6, *policy.head.layout.shape)
        assert same(ours, theirs)
    action = actions[1][1]
    by_numpy, by_torch = (learn(config, policy, obs, action, kind) for kind in ("numpy", "autograd"))
    for ours, theirs in zip(by_numpy, by_torch, strict=True):
        assert ours.shape == theirs.shape
        assert np.isfinite(ours).all()
        assert same(ours, theirs)
    assert np.abs(by_torch[-1]).max() > 1e-3


@given(observation_spaces(2), action_spaces(depth=2), st.sampled_from(DISTRIBUTIONS), SEEDS, st.booleans())
@many(25)
def test_the_update_computes_what_the_policy_does(
    space: gymnasium.Space, action_space: gymnasium.Space, distribution: str, seed: int, masked: bool
) -> None:
    """The log-probabilities and values of a rollout are those of the policy, and the gradient reaches the weights."""
    config, policy, obs = policy_of(space, action_space, seed, masked, action_distribution=distribution)
    head = policy.head
    with torch.no_grad():
        action_distribution, value, _ = policy(tree_map(torch.from_numpy, obs), (), None)
        sample = action_distribution.sample(noise_of(head, np.random.default_rng(seed), 6))
        log_prob, entropy = action_distribution.log_prob(sample), action_distribution.entropy()
    outputs = learn(config, policy, obs, stored(head, sample).numpy(), "autograd")
    expected = log_prob, entropy, value, log_prob, value
    for ours, theirs in zip(outputs[:5], expected, strict=True):
        assert ours.shape == ((6, 1) if theirs is value else (6,))
        assert np.isfinite(ours).all()
        assert same(ours, theirs.numpy())
    next_value = value.flip(0).numpy()  # of the next row, except after a truncation
    next_value[[1, 3]] = value[[0, 2]].numpy()
    assert same(outputs[5], next_value)
    assert np.isfinite(outputs[6]).all()
    assert np.count_nonzero(outputs[6]) > 8


# --- spaces in checkpoints ------------------------------------------------------------------------------------------------


def identical(ours: gymnasium.Space, theirs: gymnasium.Space) -> bool:
    """Return whether spaces are exactly equal. Gymnasium compares bounds approximately and ignores subclasses of Dict."""
    if type(ours) is not type(theirs) or ours != theirs:
        return False
    if isinstance(ours, spaces.Dict):
        return list(ours) == list(theirs) and all(identical(part, theirs[key]) for key, part in ours.items())
    if isinstance(ours, spaces.Tuple):
        return all(map(identical, ours, theirs))
    exact = not isinstance(ours, spaces.Box) or (np.array_equal(ours.low, theirs.low) and np.array_equal(ours.high, theirs.high))
    return exact and ours.dtype == theirs.dtype and ours.shape == theirs.shape


@given(st.one_of(observation_spaces(), action_spaces(bounded=False)), st.integers(1, 9))
@many(150)
def test_spaces_are_the_same_after_json(space: gymnasium.Space, choices: int) -> None:
    for each in (space, Masked(space, choices), stored_space(Masked(space, choices))):
        document = json.loads(json.dumps(space_to_json(each)))
        assert identical(space_from_json(document), each)
    assert len(list(tree_leaves(allocate(Masked(stored_space(space), choices), 1)))) == 1 + len(list(leaves_of(space)))
