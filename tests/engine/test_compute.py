"""NumpyCompute and TorchCompute agree with each other, with the policy's modules and with torch.distributions."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from harness import make_rollout
from proxrl.build import build_compute
from proxrl.config import Config
from proxrl.engine.api import Compute, Outputs
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.flat import FlatParameters
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.policy.networks import make_policy
from proxrl.policy.policy import Policy
from proxrl.types import Batch, Rollout, Terms

STEPS, ENVS = 5, 3
ACTIONS = {"discrete": spaces.Discrete(4, start=1), "box": spaces.Box(-1, 1, (2, 2), np.float32)}
OBSERVATIONS: dict[str, tuple[Any, bool]] = {
    "vector": (spaces.Box(-5, 5, (4,), np.float32), False),
    "whitened": (spaces.Box(-5, 5, (4,), np.float32), True),
    "whitened matrix": (spaces.Box(-5, 5, (2, 3), np.float32), True),
    "image": (spaces.Box(0, 255, (2, 2, 2), np.uint8), False),
    "whitened image": (spaces.Box(0, 255, (2, 2, 2), np.uint8), True),
    "whitened integers": (spaces.Box(-50, 50, (3,), np.int64), True),
    "integers": (spaces.Box(-50, 50, (3,), np.int32), False),
    "scalar": (spaces.Box(-5, 5, (), np.float32), False),
    "one-hot": (spaces.Discrete(6, start=2), False),
}


def make_pair(obs: str, action: str, hidden: tuple[int, ...] = (7, 5), activation: str = "tanh") -> dict[str, Any]:
    """Return one policy with random weights and statistics in two copies, one for each compute."""
    space, normalize = OBSERVATIONS[obs]
    config = Config(hidden_sizes=hidden, activation=activation, normalize_observations=normalize, clip_observations=1.5)
    policy = make_policy(config, space, ACTIONS[action])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
        if normalize:
            moments = policy.preprocess.moments
            moments.mean += torch.randn(moments.mean.shape, generator=generator)
            moments.variance += 3 * torch.rand(moments.variance.shape, generator=generator)
    result: dict[str, Any] = {}
    for kind in ("numpy", "autograd"):
        twin = copy.deepcopy(policy)
        parameters = FlatParameters(twin.groups())
        result[kind] = (twin, parameters, build_compute(config.replace(compute=kind), twin, parameters))
    assert isinstance(result["numpy"][2], NumpyCompute)
    assert isinstance(result["autograd"][2], TorchCompute)
    return result


def sample_obs(obs: str, *shape: int) -> NDArray[Any]:
    space = OBSERVATIONS[obs][0]
    rng = np.random.default_rng(1)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, shape)
    if np.issubdtype(space.dtype, np.integer):
        return rng.integers(space.low.min(), space.high.max(), (*shape, *space.shape)).astype(space.dtype)
    return rng.normal(0, 2, (*shape, *space.shape)).astype(np.float32)


def sample_actions(action: str, *shape: int) -> NDArray[Any]:
    rng = np.random.default_rng(2)
    return rng.integers(0, 4, shape) if action == "discrete" else rng.normal(size=(*shape, 4)).astype(np.float32)


def sample_rollout(obs: str, action: str) -> Rollout:
    return make_rollout(
        obs=sample_obs(obs, STEPS + 1, ENVS),
        action=sample_actions(action, STEPS, ENVS),
        reward=np.zeros((STEPS, ENVS), np.float32),
        final_index=(np.array([1, 4]), np.array([2, 0])),
        final_obs=sample_obs(obs, 2)[::-1].copy(),
    )


def reference(policy: Policy, obs: Any, action: Any) -> tuple[Any, Any, Any]:
    """Return log-probability, entropy and value by torch.distributions."""
    distribution, value, _ = policy(torch.as_tensor(obs), (), None)
    if hasattr(distribution, "mean"):
        normal = torch.distributions.Normal(distribution.mean, policy.head.log_std.exp())
        return normal.log_prob(action).sum(-1), normal.entropy().sum(-1), value
    categorical = torch.distributions.Categorical(logits=distribution.log_probs)
    return categorical.log_prob(action), categorical.entropy(), value


def close(a: Any, b: Any) -> bool:
    return np.allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_acting_and_evaluating_agree(obs: str, action: str) -> None:
    pair = make_pair(obs, action)
    rollout = sample_rollout(obs, action)
    policy = pair["numpy"][0]
    rng = np.random.default_rng(3)
    starts = np.zeros(ENVS, np.bool_)
    for noise in (None, policy.head.noise(rng, ENVS), policy.head.noise(rng, ENVS)):
        by_numpy, by_torch = (pair[kind][2].act(rollout.obs[0], (), starts, noise)[0] for kind in pair)
        assert by_numpy.dtype == by_torch.dtype == policy.head.layout.dtype
        assert by_numpy.shape == (ENVS, *policy.head.layout.shape)
        assert close(by_numpy, by_torch)
    evaluations = {kind: pair[kind][2].evaluate(rollout) for kind in pair}
    for ours, theirs in zip(evaluations["numpy"][1:], evaluations["autograd"][1:], strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert close(ours, theirs)
    with torch.no_grad():
        for t in range(STEPS):
            log_prob, _, value = reference(policy, rollout.obs[t], torch.from_numpy(rollout.action[t]))
            assert close(evaluations["numpy"].log_prob[t], log_prob)
            assert close(evaluations["numpy"].value[t], value)
        finals = policy(torch.from_numpy(rollout.final_obs), (), None)[1]
    assert close(evaluations["numpy"].next_value[rollout.final_index], finals)
    assert close(evaluations["numpy"].next_value[0], evaluations["numpy"].value[1])


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (6,), (7, 5), (4, 5, 6)])
def test_forward_and_gradients_agree_with_autograd(hidden: tuple[int, ...], activation: str, action: str) -> None:
    check_gradients("whitened", action, hidden, activation)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_gradients_agree_for_every_kind_of_observation(obs: str, action: str) -> None:
    check_gradients(obs, action, (7, 5), "tanh")


def check_gradients(obs: str, action: str, hidden: tuple[int, ...], activation: str) -> None:
    pair = make_pair(obs, action, hidden, activation)
    rows = 9
    raw, chosen = sample_obs(obs, rows), sample_actions(action, rows)
    rng = np.random.default_rng(4)
    gradient = [rng.normal(size=shape).astype(np.float32) for shape in (rows, rows, (rows, 1))]
    terms = np.arange(len(Terms._fields), dtype=np.float32)

    policy, parameters, _ = make_pair(obs, action, hidden, activation)["autograd"]
    expected_outputs = reference(policy, raw, torch.from_numpy(chosen))
    sum((torch.from_numpy(g) * output).sum() for g, output in zip(gradient, expected_outputs, strict=True)).backward()
    expected = parameters.gradient.clone()
    assert expected.abs().max() > 0.1

    for kind, (_, flat, compute) in pair.items():
        flat.message.zero_()  # as the update does: gradients add up
        outputs = run_forward(compute, raw, chosen)
        for ours, theirs in zip(outputs, expected_outputs, strict=True):
            assert close(ours, theirs.detach()), kind
        compute.backward(Outputs(*map(compute.array, gradient)), list(compute.array(terms)), [])
        assert torch.allclose(flat.gradient, expected, rtol=1e-4, atol=2e-5), kind
        assert flat.terms.tolist() == terms.tolist(), kind


def run_forward(compute: Compute, raw: NDArray[Any], action: NDArray[Any]) -> Outputs:
    """Run `forward` as the update does: on observations that `evaluate` has preprocessed."""
    reward = np.zeros((1, len(raw)), np.float32)
    rollout = make_rollout(obs=np.stack([raw, raw]), action=action[None], reward=reward)
    preprocessed = compute.evaluate(rollout).obs
    zeros = compute.array(np.zeros(len(raw), np.float32))
    columns = (zeros, zeros[:, None], zeros, zeros[:, None], zeros, zeros, zeros)
    return compute.forward(Batch(preprocessed, compute.array(action), *columns, state=()))


def test_numpy_does_not_support_unknown_modules() -> None:
    policy = make_pair("vector", "discrete")["numpy"][0]
    assert NumpyCompute.supports(policy)

    class Other(type(policy.actor)):  # type: ignore[misc]
        pass

    policy.actor.__class__ = Other
    assert not NumpyCompute.supports(policy)


def test_acting_uses_the_current_weights() -> None:
    for kind in ("numpy", "autograd"):
        policy, flat, compute = make_pair("vector", "box")[kind]
        obs, starts = sample_obs("vector", ENVS), np.zeros(ENVS, np.bool_)
        before = compute.act(obs, (), starts, None)[0].copy()
        flat.values.mul_(0.5)
        after = compute.act(obs, (), starts, None)[0]
        assert not np.allclose(before, after), kind
        noise = policy.head.noise(np.random.default_rng(0), ENVS)
        with torch.no_grad():
            policy.head.log_std.fill_(-1.0)
        compute.freeze()
        sampled = compute.act(obs, (), starts, noise)[0]
        assert close(sampled, after + np.exp(-1) * noise), kind


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_large_batches_agree_too(activation: str, scale: float) -> None:
    """Libraries may use other kernels for large arrays; saturated units must neither warn nor differ."""
    pair = make_pair("vector", "box", (9, 9), activation)
    rows = 1000
    raw, chosen = scale * sample_obs("vector", rows), sample_actions("box", rows)
    outputs, gradients = {}, {}
    for kind, (_, flat, compute) in pair.items():
        with np.errstate(all="raise", under="ignore"):
            outputs[kind] = run_forward(compute, raw, chosen)
            ones = compute.array(np.full(rows, 1e-3, np.float32))
            terms = list(compute.array(np.zeros(len(Terms._fields), np.float32)))
            compute.backward(Outputs(0 * ones, ones, ones[:, None]), terms, [])
        gradients[kind] = flat.gradient
    values = [outputs[kind].value for kind in pair]
    assert np.allclose(values[0], values[1].numpy(), rtol=1e-5, atol=2e-6 * max(1, scale))
    assert torch.allclose(gradients["numpy"], gradients["autograd"], rtol=1e-4, atol=1e-5 * max(1, scale))
