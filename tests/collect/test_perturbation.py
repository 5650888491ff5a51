"""Robust Policy Optimization: means are moved in the update, and nowhere else."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import NEVER, NextStepEnvs, assemble, collect, run_ranks, scripted, train
from proxrl import ppo
from proxrl.build import Parts
from proxrl.cli import main
from proxrl.config import Config
from proxrl.engine.descent import microbatches
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError

BOX = spaces.Box(-0.5, 0.5, (2,), np.float32)
HYBRID = spaces.Dict(a=spaces.Discrete(3), b=BOX, c=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (1,), np.float32)]))
SCRIPTS = (((3, "terminated"), (2, "truncated")), ((4, "truncated"),), (NEVER,), ((1, "terminated"), (6, "truncated")))


def rpo_config(**changes: Any) -> Config:
    settings = {"num_envs": 4, "rollout_steps": 6, "num_minibatches": 3, "hidden_sizes": (8,), "total_steps": 72}
    return Config(**{**settings, "rpo_alpha": 0.5, "epochs": 2, **changes}).validate()


def drawn(config: Config, space: Any = BOX) -> tuple[Parts, list[Any]]:
    parts = assemble(config, InProcessEnvs(scripted(SCRIPTS, space)))
    batch = ppo.advantage(parts, collect(parts), config.at(0))
    return parts, list(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), config.epochs))


HEADS: list[tuple[dict[str, Any], Any, list[int]]] = [
    ({"compute": "numpy"}, BOX, [0, 1]),
    ({"compute": "autograd"}, BOX, [0, 1]),
    ({"std": "fixed"}, BOX, [0, 1]),
    ({"std": "state"}, BOX, [0, 1]),
    ({"action_distribution": "tanh", "std": "state"}, BOX, [0, 1]),
    ({"action_distribution": "tanh"}, HYBRID, [3, 4, 7]),
    ({"std": "state"}, HYBRID, [3, 4, 9]),
    ({"memory": "gru", "memory_size": 5, "sequence_length": 3, "accumulate": 2}, BOX, [0, 1]),
]


@pytest.mark.parametrize(("settings", "space", "means"), HEADS)
def test_the_gradient_is_that_of_the_moved_mean(settings: dict[str, Any], space: Any, means: list[int]) -> None:
    """Against the loss of PPO as in a textbook, differentiated by autograd."""
    config = rpo_config(**settings)
    parts, minibatches = drawn(config, space)
    now, policy = config.at(0), parts.policy
    minibatch = minibatches[0]
    (moves,) = minibatch.perturbation
    assert list(parts.policy.head.means) == means
    assert moves.shape == (8 if config.memory is None else len(minibatch.weight), policy.head.inputs)
    assert np.count_nonzero(np.asarray(moves)) == len(moves) * len(means)
    assert np.asarray(moves)[:, means].all()
    assert np.abs(np.asarray(moves)).max() <= 0.5
    assert np.abs(np.asarray(moves)).max() > 0.3
    parts.descent.differentiate(minibatch, ppo.loss, now, config.phases(0)[0])
    found = parts.parameters.gradient.clone()

    batch = dataclasses.replace(minibatch, **{name: torch.as_tensor(getattr(minibatch, name)) for name in COLUMNS})
    obs = torch.as_tensor(batch.obs[0]) if config.compute == "numpy" else batch.obs
    with torch.enable_grad():
        features, _ = policy.memory(policy.actor(obs), batch.state[: policy.memory.size], batch.starts)
        distribution = policy.head(policy.action(features) + torch.as_tensor(moves))
        values, _ = policy.critic_memory(policy.critic(obs), batch.state[policy.memory.size :], batch.starts)
        value = policy.value(values)
        ratio = torch.exp(distribution.log_prob(batch.action) - batch.log_prob)
        surrogate = torch.min(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage)
        clipped = batch.value + (value - batch.value).clamp(-0.2, 0.2)
        error = 0.5 * torch.max((value - batch.target) ** 2, (clipped - batch.target) ** 2)[:, 0]
        loss = (batch.weight * (-surrogate + 0.5 * error - 0.01 * distribution.entropy())).sum()
        groups = [parameter for group in policy.groups() for parameter in group]
        expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, groups)])
    assert expected.abs().max() > 1e-3
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5)


COLUMNS = ("action", "log_prob", "value", "advantage", "target", "weight", "starts")


@pytest.mark.parametrize(("settings", "space"), [case[:2] for case in HEADS])
def test_ratios_are_one_without_the_perturbation_and_differ_with_it(settings: dict[str, Any], space: Any) -> None:
    parts, minibatches = drawn(rpo_config(**settings), space)
    for minibatch in minibatches:
        for batch in microbatches(minibatch, parts.config.accumulate):
            counted = np.asarray(batch.weight) > 0
            plain = parts.compute.forward(dataclasses.replace(batch, perturbation=()))
            assert np.allclose(np.asarray(plain.log_prob)[counted], np.asarray(batch.log_prob)[counted], atol=1e-5)
            moved = parts.compute.forward(batch)
            assert np.abs(np.asarray(moved.log_prob) - np.asarray(batch.log_prob))[counted].max() > 1e-3


def test_every_epoch_has_other_perturbations_and_without_alpha_nothing_is_drawn() -> None:
    _, minibatches = drawn(rpo_config(compute="numpy", num_minibatches=1))
    first, second = (batch.perturbation[0][np.argsort(batch.rows)] for batch in minibatches)
    assert (first != second).all()
    _, without = drawn(rpo_config(compute="numpy", rpo_alpha=None))
    _, unaffected = drawn(rpo_config(compute="numpy"), spaces.Discrete(3))
    assert all(batch.perturbation == () for batch in without + unaffected)
    expected = train(assemble(rpo_config(rpo_alpha=None), InProcessEnvs(scripted(SCRIPTS, spaces.Discrete(3)))))
    found = train(assemble(rpo_config(), InProcessEnvs(scripted(SCRIPTS, spaces.Discrete(3)))))
    assert found.metrics == expected.metrics


def test_engines_and_ranks_learn_the_same() -> None:
    def trained(world: Any, compute: str) -> torch.Tensor:
        each = 4 // world.size
        first = world.rank * each
        pool = NextStepEnvs(scripted(SCRIPTS[first : first + each], BOX, first), first_env=first)
        parts = assemble(rpo_config(compute=compute), pool, world, first)
        train(parts)
        return parts.parameters.values.clone()

    (expected,) = run_ranks(1, lambda world: trained(world, "autograd"))
    for size, compute in ((1, "numpy"), (2, "numpy"), (2, "autograd"), (4, "autograd")):
        for values in run_ranks(size, lambda world, compute=compute: trained(world, compute)):
            assert torch.allclose(values, expected, rtol=1e-4, atol=1e-5), (size, compute)


def test_actions_without_a_gaussian(capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProxRLError, match="--rpo-alpha moves the mean of a Gaussian; a Beta distribution has none"):
        rpo_config(action_distribution="beta")
    with pytest.raises(ProxRLError, match="--rpo-alpha is 0, but must be greater than 0"):
        rpo_config(rpo_alpha=0)
    flags = ["--num-envs", "2", "--rollout-steps", "8", "--num-minibatches", "2", "--total-steps", "16", "--hidden-sizes", "4"]
    assert main(["train", "CartPole-v1", "--rpo-alpha", "0.5", *flags, "--no-tensorboard", "--vector", "inprocess"]) == 0
    assert "warning: --rpo-alpha 0.5 has no effect because the actions of CartPole-v1 are not continuous" in "".join(
        capsys.readouterr()
    )
