"""`agent.value`, `agent.distribution` and `agent.log_prob`, against torch's own distributions and by summing and integrating."""

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch import distributions as td

from proxrl.config import Config
from proxrl.envs.spaces import Masked, space_to_json
from proxrl.errors import ProxRLError
from proxrl.look.agent import Agent
from proxrl.policy.networks import make_policy

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
ROWS = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
BOX = spaces.Box(np.array([-1.0, 2.0]), np.array([1.0, 6.0]), dtype=np.float64)


def make_agent(action: gymnasium.Space, obs: gymnasium.Space = VECTOR, **settings: Any) -> Agent:
    """Return an agent with random weights that are large enough for distinct distributions."""
    config = Config(hidden_sizes=(8,), normalize_observations=True, **settings)
    torch.manual_seed(1)
    weights = make_policy(config, obs, action).state_dict()
    tensors = {f"policy.{name}": tensor + 0.5 * torch.randn(tensor.shape) for name, tensor in weights.items()}
    tensors |= {f"policy.{name}": tensor for name, tensor in weights.items() if "moments" in name}  # no negative variances
    state = {"step": 0, "observation_space": space_to_json(obs), "action_space": space_to_json(action)}
    return Agent(config, tensors, state)


def head_inputs(agent: Agent, rows: Any = ROWS) -> Tensor:
    policy = agent.policy
    with torch.no_grad():
        return policy.action(policy.actor(policy.preprocess(torch.from_numpy(rows)))).detach()


def test_what_an_agent_is_and_takes() -> None:
    agent = make_agent(spaces.Discrete(2))
    assert repr(agent) == f"<Agent of CartPole-v1 at step 0: {VECTOR} to Discrete(2)>"
    with pytest.raises(ProxRLError, match=r"has shape \(5,\), but this agent takes \(3,\), or \(N, 3\) for a batch"):
        agent.value(np.zeros(5))


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_discrete(compute: str) -> None:
    agent = make_agent(spaces.Discrete(4, start=-1), compute=compute)
    expected = td.Categorical(logits=head_inputs(agent))
    distribution = agent.distribution(ROWS)
    assert np.allclose(distribution.probabilities, expected.probs, atol=1e-6)
    assert np.allclose(distribution.entropy(), expected.entropy(), atol=1e-5)
    assert np.array_equal(distribution.mode(), agent.act(ROWS))
    actions = np.array([-1, 0, 1, 2, -1])
    assert np.allclose(distribution.log_prob(actions), expected.log_prob(torch.from_numpy(actions + 1)), atol=1e-5)
    assert np.array_equal(agent.log_prob(ROWS, actions), distribution.log_prob(actions))
    assert (distribution.mean, distribution.std) == (None, None)
    one = agent.distribution(ROWS[2])
    assert isinstance(one.entropy(), float)
    assert isinstance(one.log_prob(1), float)
    assert one.log_prob(1) == pytest.approx(agent.log_prob(ROWS, actions)[2], abs=1e-5)
    assert one.probabilities.shape == (4,)
    assert one.mode() == agent.act(ROWS[2])
    drawn = [one.sample() for _ in range(400)]
    assert np.allclose(np.bincount(np.array(drawn) + 1, minlength=4) / 400, one.probabilities, atol=0.1)
    assert repr(one) == "<ActionDistribution over Discrete(4, start=-1) for one observation>"


def test_sampling_takes_the_random_numbers_of_act() -> None:
    agent, other = make_agent(BOX), make_agent(BOX)
    assert np.allclose(agent.distribution(ROWS).sample(), other.act(ROWS, deterministic=False), atol=1e-5)


def test_values() -> None:
    for compute in ("numpy", "autograd"):
        agent = make_agent(spaces.Discrete(2), compute=compute)
        policy = agent.policy
        with torch.no_grad():
            expected = policy.value(policy.critic(policy.preprocess(torch.from_numpy(ROWS))))[:, 0]  # type: ignore[misc]
        assert np.allclose(agent.value(ROWS), expected, atol=1e-6)
        assert isinstance(agent.value(ROWS[1]), float)
        assert agent.value(ROWS[1]) == pytest.approx(float(expected[1]), abs=1e-6)
    shared = make_agent(spaces.Discrete(2), trunk="shared")
    assert agent.value(ROWS).shape == shared.value(ROWS).shape == (5,)


def test_multi_discrete_and_multi_binary() -> None:
    space = spaces.MultiDiscrete([[2, 3]], start=[[1, 0]])
    agent = make_agent(space)
    distribution, logits = agent.distribution(ROWS[0]), head_inputs(agent)[0]
    parts = [td.Categorical(logits=part) for part in logits.split([2, 3])]
    assert all(np.allclose(ours, part.probs, atol=1e-6) for ours, part in zip(distribution.probabilities, parts, strict=True))
    total = 0.0
    for first, second in itertools.product(range(2), range(3)):
        log_prob = distribution.log_prob(np.array([[first + 1, second]]))
        expected = parts[0].log_prob(torch.tensor(first)) + parts[1].log_prob(torch.tensor(second))
        assert log_prob == pytest.approx(float(expected), abs=1e-5)
        total += np.exp(log_prob)
    assert total == pytest.approx(1, abs=1e-5)
    bits = make_agent(spaces.MultiBinary((2, 1)))
    coins = td.Bernoulli(logits=head_inputs(bits)[0])
    assert np.allclose(bits.distribution(ROWS[0]).probabilities[:, 0], coins.probs, atol=1e-6)
    log_prob = bits.log_prob(ROWS[0], [[1], [0]])
    assert log_prob == pytest.approx(float(coins.log_prob(torch.tensor([1.0, 0.0])).sum()), abs=1e-5)
    assert bits.distribution(ROWS[0]).entropy() == pytest.approx(float(coins.entropy().sum()), abs=1e-5)


@pytest.mark.parametrize("kind", ["clip", "tanh", "beta"])
def test_continuous_actions_against_torch(kind: Any) -> None:
    agent = make_agent(BOX, action_distribution=kind, log_std_init=-0.5)
    inputs, low, width = head_inputs(agent).double(), torch.from_numpy(BOX.low), torch.from_numpy(BOX.high - BOX.low)
    gaussian = None if kind == "beta" else td.Normal(inputs, agent.policy.head.log_std.detach().double().exp())  # type: ignore
    expected: Any = gaussian
    if kind == "tanh":
        squash = [td.TanhTransform(cache_size=1), td.AffineTransform(low + width / 2, width / 2)]
        expected = td.TransformedDistribution(gaussian, squash)  # type: ignore[arg-type]
    if kind == "beta":
        alpha, beta = (1 + torch.nn.functional.softplus(inputs)).chunk(2, -1)
        expected = td.TransformedDistribution(td.Beta(alpha, beta), td.AffineTransform(low, width))
    distribution = agent.distribution(ROWS)
    actions = distribution.sample()
    assert BOX.contains(actions[0])
    reference = expected.log_prob(torch.from_numpy(actions)).sum(-1)
    assert np.allclose(distribution.log_prob(actions), reference, rtol=1e-3, atol=1e-3)
    assert distribution.mean.shape == distribution.std.shape == (5, 2)
    if gaussian is not None:
        assert np.allclose(distribution.mean, gaussian.mean, atol=1e-5)
        assert np.allclose(distribution.std, gaussian.stddev, atol=1e-5)
    else:
        exact = td.Beta(alpha, beta)
        assert np.allclose(distribution.mean, low + width * exact.mean, atol=1e-5)
        assert np.allclose(distribution.std, width * exact.stddev, atol=1e-5)
    assert distribution.probabilities is None
    assert np.isfinite(distribution.log_prob(np.tile(BOX.low, (5, 1)))).all(), "on a bound"


@pytest.mark.parametrize("kind", ["clip", "tanh", "beta"])
def test_densities_integrate_to_one_and_to_the_entropy(kind: Any) -> None:
    low, high = (-20.0, 20.0) if kind == "clip" else (-1.0, 3.0)
    agent = make_agent(spaces.Box(low, high, (1,), np.float64), action_distribution=kind, log_std_init=-1.0)
    grid = np.linspace(low, high, 4002)[1:-1]
    log_density = agent.log_prob(np.tile(ROWS[0], (len(grid), 1)), grid[:, None])
    density = np.exp(log_density)
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=2e-3)
    assert agent.distribution(ROWS[0]).entropy() == pytest.approx(-np.trapezoid(density * log_density, grid), abs=5e-3)


def test_nested_actions() -> None:
    parts = {"move": spaces.Discrete(3, start=2), "turn": BOX, "keys": spaces.MultiBinary(2)}
    agent = make_agent(spaces.Dict(parts))
    distribution = agent.distribution(ROWS)
    actions = distribution.sample()
    assert distribution.probabilities["move"].shape == (5, 3)
    assert distribution.probabilities["turn"] is None
    assert distribution.mean["turn"].shape == (5, 2)
    assert (distribution.mean["move"], distribution.std["keys"]) == (None, None)
    inputs = head_inputs(agent)
    keys, move, turn = inputs.split([2, 3, 2], -1)  # Gymnasium sorts the keys
    std = agent.policy.head.heads[2].log_std.detach().exp()  # type: ignore[union-attr, index]
    expected = td.Categorical(logits=move).log_prob(torch.from_numpy(actions["move"]) - 2)
    expected = expected + td.Normal(turn, std).log_prob(torch.from_numpy(actions["turn"]).float()).sum(-1)
    expected = expected + td.Bernoulli(logits=keys).log_prob(torch.from_numpy(actions["keys"]).float()).sum(-1)
    assert np.allclose(distribution.log_prob(actions), expected, atol=1e-4)
    one = {key: value[3] for key, value in actions.items()}
    assert agent.log_prob(ROWS[3], one) == pytest.approx(float(expected[3]), abs=1e-4)
    with pytest.raises(ProxRLError, match=r"does not have the structure.*KeyError: 'keys'"):
        distribution.log_prob({"move": actions["move"]})


def test_masks() -> None:
    agent = make_agent(spaces.Discrete(3), Masked(VECTOR, 3))
    mask = np.array([1, 0, 1], np.int8)
    distribution = agent.distribution(ROWS[0], mask=mask)
    logits = agent.policy.action(agent.policy.actor(torch.from_numpy(ROWS[:1])))[0, [0, 2]].detach()
    assert np.allclose(distribution.probabilities, [*np.insert(torch.softmax(logits, -1).numpy(), 1, 0.0)], atol=1e-6)
    assert distribution.log_prob(1) == -np.inf
    assert agent.log_prob(ROWS[0], 0, mask=mask) == pytest.approx(float(torch.log_softmax(logits, -1)[0]), abs=1e-5)
    assert agent.value(ROWS[0]) == agent.value({"observation": ROWS[0], "action_mask": mask})
    with pytest.raises(ProxRLError, match="trained with action masks"):
        agent.distribution(ROWS[0])
    with pytest.raises(ProxRLError, match="allows no action"):
        agent.distribution(ROWS[0], mask=np.zeros(3, np.int8))


@pytest.mark.parametrize(
    ("action", "words"),
    [(7, "7, which is not in Discrete"), ([0, 1], r"shape \(2,\), but must have \(\)"), ("left", "does not have the structure")],
)
def test_wrong_actions(action: Any, words: str) -> None:
    with pytest.raises(ProxRLError, match=words):
        make_agent(spaces.Discrete(3)).log_prob(ROWS[0], action)
