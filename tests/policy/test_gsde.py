"""Generalized state-dependent exploration: its distribution, how long its noise lasts, and whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from commands import assert_same_checkpoint
from harness import NEVER, NextStepEnvs, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import Parts
from proxrl.collect.player import draw_noise
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.export.exporter import export_policy
from proxrl.policy.gsde import ExploringHead, ExploringTanhHead

BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"),), (NEVER,), ((1, "terminated"), (6, "truncated")))


def gsde_config(**changes: Any) -> Config:
    settings = {"num_envs": 4, "rollout_steps": 6, "num_minibatches": 3, "hidden_sizes": (8,), "total_steps": 72, "epochs": 2}
    return Config(**{**settings, "noise": "gsde", "log_std_init": -1.0, **changes}).validate()


def gsde_parts(pool: Any = InProcessEnvs, **changes: Any) -> Parts:
    return assemble(gsde_config(**changes), pool(scripted(SCRIPTS, BOX)))


@pytest.mark.parametrize("distribution", ["clip", "tanh"])
def test_samples_have_the_mean_and_variance_of_the_distribution(distribution: str) -> None:
    parts = gsde_parts(action_distribution=distribution)
    policy = parts.policy
    assert type(policy.head) is (ExploringTanhHead if distribution == "tanh" else ExploringHead)
    assert policy.head.log_std.shape == (8, 2)
    torch.manual_seed(0)
    with torch.no_grad():
        policy.head.log_std += 0.5 * torch.randn(8, 2)
        obs = torch.randn(1, 3)
        found = policy(obs.expand(40_000, 3), (), None)[0]
        noise = policy.head.noise(np.random.default_rng(0), 40_000)
        samples = found.sample(torch.from_numpy(noise))
        features = policy.actor(obs)[0]
    expected = np.sqrt((features.numpy()[:, None] ** 2 * np.exp(2 * policy.head.log_std.detach().numpy())).sum(0))
    np.testing.assert_allclose(samples.std(0), expected, rtol=0.02)
    np.testing.assert_allclose(samples.mean(0), found.mode()[0], atol=0.02)
    np.testing.assert_allclose(found.log_std[0].exp(), expected, rtol=1e-3)
    if distribution == "clip":
        normal = torch.distributions.Normal(found.mean[:9], torch.from_numpy(expected))
        torch.testing.assert_close(found.log_prob(samples)[:9], normal.log_prob(samples[:9]).sum(-1), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.entropy()[:9], normal.entropy().sum(-1), rtol=1e-3, atol=1e-3)
    # The same matrix gives nearby states nearby noise, and the same state the same noise.
    first = torch.from_numpy(noise[:1])
    with torch.no_grad():
        near = policy(obs + 1e-4, (), None)[0].sample(first) - policy(obs, (), None)[0].sample(first)
    assert near.abs().max() < 1e-2


def test_noise_lasts_for_the_interval_whatever_the_size_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for interval, most in ((4, 2**18), (4, 48), (None, 2**18)):
        monkeypatch.setattr("proxrl.collect.player.NOISE_NUMBERS", most)
        head = gsde_parts(noise_interval=interval, rollout_steps=12).policy.head
        streams = [np.random.default_rng(n) for n in range(2)]
        rows = np.stack([noise for noise, _ in zip(draw_noise(head, streams, 12), range(24), strict=False)])
        assert rows.shape == (24, 2, 16)
        same = (rows[1:] == rows[:-1]).all((1, 2))
        changes = [t + 1 for t in np.flatnonzero(~same)]
        assert changes == ([4, 8, 12, 16, 20] if interval else [12])
        assert (rows[:, 0] != rows[:, 1]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"action_distribution": "tanh"},
        {"std": "fixed"},
        {"memory": "lstm", "memory_size": 5},
        {"trunk": "shared", "rpo_alpha": None},
    ],
)
def test_ratios_of_the_first_epoch_are_one_and_it_learns(changes: dict[str, Any]) -> None:
    parts = gsde_parts(NextStepEnvs, noise_interval=2, **changes)
    batch = ppo.advantage(parts, collect(parts), parts.config.at(0))
    for minibatch in parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1):
        counted = minibatch.weight > 0
        outputs = parts.compute.forward(minibatch)
        assert torch.allclose(outputs.log_prob[counted], minibatch.log_prob[counted], atol=1e-5)
    parts.descent.differentiate(minibatch, ppo.loss, parts.config.at(0), parts.config.phases(0)[0])
    learned = parts.policy.head.log_std.grad
    assert (learned is None) == (parts.config.std == "fixed")
    assert learned is None or learned.abs().min() > 0


def test_ranks_learn_the_same_also_with_rpo() -> None:
    def trained(world: Any) -> torch.Tensor:
        each = 4 // world.size
        first = world.rank * each
        pool = NextStepEnvs(scripted(SCRIPTS[first : first + each], BOX, first), first_env=first)
        parts = assemble(gsde_config(noise_interval=4, rpo_alpha=0.1), pool, world, first)
        train(parts)
        return parts.parameters.values.clone()

    (expected,) = run_ranks(1, trained)
    for values in run_ranks(2, trained):
        assert torch.allclose(values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", ["clip", "tanh"])
def test_runs_are_evaluated_exported_and_repeated(distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "num_envs": 2,
        "rollout_steps": 32,
        "num_minibatches": 2,
        "hidden_sizes": (8,),
        "total_steps": 128,
    }
    settings |= {"noise": "gsde", "noise_interval": 8, "log_std_init": -2, "action_distribution": distribution}
    result = proxrl.train("Pendulum-v1", **settings, quiet=True, tensorboard=False)
    again = proxrl.train(config=result.path / "config.toml", runs_dir="again", quiet=True, tensorboard=False)
    assert_same_checkpoint(result.path, again.path)
    scores = proxrl.evaluate(result.path, episodes=2)
    assert scores["deterministic"].mean != scores["stochastic"].mean
    agent = proxrl.load(result.path)
    obs = np.array([1, 0, 0.5], np.float32)
    found = agent.distribution(obs)
    assert found.std.shape == (1,)
    assert 0 < found.std[0] < 2
    assert np.isfinite(found.log_prob(agent.act(obs, deterministic=False)))
    assert agent.act(obs) == found.mode()
    agent.reset()
    actions = [agent.act(obs, deterministic=False).item() for _ in range(20)]
    assert [len(set(actions[:8])), len(set(actions[8:16])), len(set(actions))] == [1, 1, 3]  # kept for the interval
    agent.reset()
    assert agent.act(obs, deterministic=False).item() not in actions
    batch = agent.act(np.stack([obs, obs]), deterministic=False)
    assert batch[0] != batch[1]  # each row has noise of its own
    export_policy(result.path)  # verifies that the file acts as the agent does


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_distribution": "beta"}, "--noise gsde is for Gaussians; use --action-distribution clip or tanh"),
        ({"std": "state"}, "--noise gsde depends on the state already; use --std independent or fixed with it"),
        ({"policy": "a:b"}, "--noise gsde needs the features of ProxRL's policy network; use --encoder instead of --policy"),
        ({"noise": "pink"}, "--noise is 'pink', but must be one of gsde"),
        ({"noise_interval": 0}, "--noise-interval is 0, but must be at least 1"),
    ],
)
def test_settings_that_exclude_each_other(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProxRLError, match=words):
        gsde_config(**changes)


def test_boxes_within_products_are_refused_and_discrete_actions_have_no_noise() -> None:
    hybrid = spaces.Tuple([BOX, spaces.Discrete(2)])
    with pytest.raises(ProxRLError, match="--noise gsde is for a Box of actions alone, but the action space is Tuple"):
        assemble(gsde_config(), InProcessEnvs(scripted(SCRIPTS, hybrid)))
    assert assemble(gsde_config(), InProcessEnvs(scripted(SCRIPTS))).policy.head.noise_interval == 1
