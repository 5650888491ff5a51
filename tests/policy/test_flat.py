"""One flat buffer for all parameters, and Adam on it."""

import copy

import pytest
import torch
from torch import nn

from proxrl.policy.flat import FlatAdam, FlatParameters


def make_module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 0.1])
def test_adam_equals_torch_over_fifty_steps(epsilon: float) -> None:
    ours, theirs = make_module(), make_module()
    flat = FlatParameters(ours, carried=2)
    adam = FlatAdam(flat, epsilon)
    reference = torch.optim.Adam(theirs.parameters(), lr=1.0, eps=epsilon)
    before = flat.values.clone()
    generator = torch.Generator().manual_seed(1)
    for step in range(50):
        learning_rate = 0.01 * (1 - step / 50)
        gradient = torch.randn(flat.gradient.shape, generator=generator) * 10.0 ** (step % 5 - 3)
        flat.gradient.copy_(gradient)
        adam.step(learning_rate)
        start = 0
        for parameter in theirs.parameters():
            parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()
        reference.param_groups[0]["lr"] = learning_rate
        reference.step()
        expected = nn.utils.parameters_to_vector(theirs.parameters()).detach()
        assert torch.allclose(flat.values, expected, rtol=1e-5, atol=1e-6), step
    assert (flat.values - before).abs().max() > 0.02


def test_adam_goes_on_from_saved_tensors() -> None:
    flat = FlatParameters(make_module(), carried=0)
    adam = FlatAdam(flat, 1e-5)
    for scale in (1.0, -2.0):
        flat.gradient.fill_(scale)
        adam.step(0.01)
    other_flat = FlatParameters(make_module(), carried=0)
    other = FlatAdam(other_flat, 1e-5)
    other_flat.values.copy_(flat.values)
    for name, tensor in other.tensors().items():
        tensor.copy_(adam.tensors()[name])
    for parameters, optimizer in ((flat, adam), (other_flat, other)):
        parameters.gradient.fill_(0.5)
        optimizer.step(0.01)
    assert torch.equal(flat.values, other_flat.values)


def test_module_and_flat_buffers_are_the_same_memory() -> None:
    module = make_module()
    expected = nn.utils.parameters_to_vector(make_module().parameters()).detach()
    flat = FlatParameters(module, carried=2)
    assert torch.equal(flat.values, expected)
    flat.values.mul_(2)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()).detach(), 2 * expected)
    flat.gradient.zero_()
    module(torch.ones(4, 3)).sum().backward()
    by_hand = make_module()
    nn.utils.vector_to_parameters(2 * expected, by_hand.parameters())
    by_hand(torch.ones(4, 3)).sum().backward()
    assert torch.equal(flat.gradient, torch.cat([parameter.grad.reshape(-1) for parameter in by_hand.parameters()]))


def test_loading_a_state_dict_keeps_the_ties() -> None:
    module = make_module()
    flat = FlatParameters(module, carried=0)
    other = {name: tensor + 1 for name, tensor in copy.deepcopy(module.state_dict()).items()}
    module.load_state_dict(other)
    assert torch.equal(flat.values, torch.cat([tensor.reshape(-1) for tensor in other.values()]))
    flat.values.zero_()
    assert all((parameter == 0).all() for parameter in module.parameters())


def test_carried_numbers_ride_in_the_gradients_message_but_are_not_clipped() -> None:
    flat = FlatParameters(make_module(), carried=2)
    flat.gradient.fill_(3.0)
    flat.carried.copy_(torch.tensor([7.0, 8.0]))
    assert flat.message[-2:].tolist() == [7, 8]
    flat.clip_gradient(0.5)
    assert flat.gradient.norm().item() == pytest.approx(0.5, rel=1e-5)
    assert flat.carried.tolist() == [7, 8]


def test_clip_equals_torch_and_leaves_small_gradients_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    for scale, limit in ((1.0, 0.5), (100.0, 0.5), (0.01, 0.5), (1.0, None)):
        flat = FlatParameters(make_module(), carried=1)
        flat.gradient.copy_(scale * torch.randn(flat.gradient.shape, generator=generator))
        reference = nn.Parameter(torch.zeros_like(flat.gradient))
        reference.grad = flat.gradient.clone()
        if limit is not None:
            nn.utils.clip_grad_norm_([reference], limit)
        flat.clip_gradient(limit)
        assert torch.allclose(flat.gradient, reference.grad, rtol=1e-5, atol=0)


def test_clipping_a_zero_gradient_keeps_it_zero() -> None:
    flat = FlatParameters(make_module(), carried=0)
    flat.clip_gradient(0.5)
    assert (flat.gradient == 0).all()
