"""One flat buffer for all parameters."""

import copy

import pytest
import torch
from torch import nn

from proxrl.engine.flat import FlatParameters
from proxrl.errors import ProxRLError


def make_module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def flatten(module: nn.Module) -> FlatParameters:
    return FlatParameters([list(module.parameters())])


def test_module_and_flat_buffers_are_the_same_memory() -> None:
    module = make_module()
    expected = nn.utils.parameters_to_vector(make_module().parameters()).detach()
    flat = flatten(module)
    assert torch.equal(flat.values, expected)
    flat.values.mul_(2)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()).detach(), 2 * expected)
    flat.gradient.zero_()
    module(torch.ones(4, 3)).sum().backward()
    by_hand = make_module()
    nn.utils.vector_to_parameters(2 * expected, by_hand.parameters())
    by_hand(torch.ones(4, 3)).sum().backward()
    assert torch.equal(flat.gradient, torch.cat([parameter.grad.reshape(-1) for parameter in by_hand.parameters()]))


def test_loading_a_state_dict_keeps_the_shared_memory() -> None:
    module = make_module()
    flat = flatten(module)
    other = {name: tensor + 1 for name, tensor in copy.deepcopy(module.state_dict()).items()}
    module.load_state_dict(other)
    assert torch.equal(flat.values, torch.cat([tensor.reshape(-1) for tensor in other.values()]))
    flat.values.zero_()
    assert all((parameter == 0).all() for parameter in module.parameters())


def test_loss_terms_are_sent_with_the_gradient_but_not_clipped() -> None:
    flat = flatten(make_module())
    flat.gradient.fill_(3.0)
    flat.terms.copy_(torch.arange(6.0))
    assert flat.message[-6:].tolist() == list(range(6))
    flat.clip_gradient(0.5)
    assert flat.gradient.norm().item() == pytest.approx(0.5, rel=1e-5)
    assert flat.terms.tolist() == list(range(6))


def test_clipping_equals_torch_and_does_not_change_small_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    for scale, limit in ((1.0, 0.5), (100.0, 0.5), (0.01, 0.5), (1.0, None)):
        flat = flatten(make_module())
        flat.gradient.copy_(scale * torch.randn(flat.gradient.shape, generator=generator))
        reference = nn.Parameter(torch.zeros_like(flat.gradient))
        reference.grad = flat.gradient.clone()
        if limit is not None:
            nn.utils.clip_grad_norm_([reference], limit)
        flat.clip_gradient(limit)
        assert torch.allclose(flat.gradient, reference.grad, rtol=1e-5, atol=0)


def test_clipping_a_zero_gradient_keeps_it_zero() -> None:
    flat = flatten(make_module())
    flat.clip_gradient(0.5)
    assert (flat.gradient == 0).all()


def test_groups_are_consecutive_slices_of_the_buffer() -> None:
    module = make_module()
    first, second = module[0].parameters(), module[2].parameters()
    flat = FlatParameters([list(second), list(first)])
    assert flat.groups == [slice(0, 12), slice(12, 32)]
    flat.values[flat.groups[0]] = 7.0
    assert all((parameter == 7).all() for parameter in module[2].parameters())
    assert not any((parameter == 7).any() for parameter in module[0].parameters())


def test_networks_without_parameters_raise_an_error() -> None:
    with pytest.raises(ProxRLError, match="nothing to train"):
        FlatParameters([[], []])
