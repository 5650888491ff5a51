"""Steps on one flat vector equal those of torch.optim, for every optimizer; policy and value may have separate ones."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from proxrl.config import Coefficients, Config, Phase
from proxrl.engine.flat import FlatParameters
from proxrl.engine.optimizers import Optimizer

BOTH = Phase(1, policy=True, value=True)
RULES: dict[str, Any] = {
    "adam": lambda parameters, decay: torch.optim.Adam(parameters, eps=1e-5, weight_decay=decay),
    "adamw": lambda parameters, decay: torch.optim.AdamW(parameters, eps=1e-5, weight_decay=decay),
    "sgd": lambda parameters, decay: torch.optim.SGD(parameters, momentum=0.9, weight_decay=decay),
    "rmsprop": lambda parameters, decay: torch.optim.RMSprop(parameters, eps=1e-5, weight_decay=decay),
}


def make_flat(sizes: tuple[int, ...] = (20, 12)) -> FlatParameters:
    generator = torch.Generator().manual_seed(0)
    return FlatParameters([[nn.Parameter(torch.randn(size, generator=generator))] for size in sizes])


def coefficients(rate: float, **changes: Any) -> Coefficients:
    return dataclasses.replace(Config().at(0), learning_rate=rate, **changes)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", RULES)
def test_fifty_steps_equal_torch(name: str, decay: float) -> None:
    flat = make_flat()
    theirs = nn.Parameter(flat.values.clone())
    ours, reference = Optimizer(flat, [name], 1e-5, 0.9), RULES[name]([theirs], decay)
    before = flat.values.clone()
    generator = torch.Generator().manual_seed(1)
    for step in range(50):
        rate = 0.01 * (1 - step / 50)
        gradient = torch.randn(flat.gradient.shape, generator=generator) * 10.0 ** (step % 5 - 3)
        flat.gradient.copy_(gradient)
        ours.step(coefficients(rate, weight_decay=decay), BOTH)
        theirs.grad = gradient.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        assert torch.allclose(flat.values, theirs.detach(), rtol=1e-5, atol=1e-6), step
    assert (flat.values - before).abs().max() > 0.02


@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_continues_from_saved_tensors(name: str) -> None:
    flat, other_flat = make_flat(), make_flat()
    optimizer, other = Optimizer(flat, [name], 1e-5, 0.9), Optimizer(other_flat, [name], 1e-5, 0.9)
    for scale in (1.0, -2.0):
        flat.gradient.fill_(scale)
        optimizer.step(coefficients(0.01), BOTH)
    other_flat.values.copy_(flat.values)
    saved = optimizer.tensors()
    assert len(saved) > 0
    for key, tensor in other.tensors().items():
        tensor.copy_(saved[key])
    for parameters, rule in ((flat, optimizer), (other_flat, other)):
        parameters.gradient.fill_(0.5)
        rule.step(coefficients(0.01), BOTH)
    assert torch.equal(flat.values, other_flat.values)


def test_policy_and_value_may_have_separate_optimizers_and_learning_rates() -> None:
    flat, policy_alone, value_alone = make_flat(), make_flat((20,)), make_flat((20, 12))
    both = Optimizer(flat, ["adam", "sgd"], 1e-5, 0.9)
    adam, sgd = Optimizer(policy_alone, ["adam"], 1e-5, 0.9), Optimizer(value_alone, ["sgd"], 1e-5, 0.9)
    for scale in (1.0, 3.0):
        for parameters in (flat, policy_alone, value_alone):
            parameters.gradient.fill_(scale)
        both.step(coefficients(0.01, value_learning_rate=0.5), BOTH)
        adam.step(coefficients(0.01), BOTH)
        sgd.step(coefficients(0.5), BOTH)
    assert torch.equal(flat.values[:20], policy_alone.values)
    assert torch.equal(flat.values[20:], value_alone.values[20:])


@pytest.mark.parametrize(("policy", "value"), [(True, False), (False, True)])
def test_parameters_that_do_not_learn_in_a_phase_do_not_change(policy: bool, value: bool) -> None:
    flat = make_flat()
    optimizer = Optimizer(flat, ["adam", "adam"], 1e-5, 0.9)
    flat.gradient.fill_(1.0)
    optimizer.step(coefficients(0.01), BOTH)  # builds up momentum, which would move it further
    before = flat.values.clone()
    flat.gradient.zero_()
    optimizer.step(coefficients(0.01), Phase(1, policy, value))
    assert torch.equal(flat.values[:20], before[:20]) is not policy
    assert torch.equal(flat.values[20:], before[20:]) is not value
