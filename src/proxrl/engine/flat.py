"""All parameters in one flat buffer, all gradients in another: averaging, clipping and stepping are one call for any network."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from proxrl.errors import ProxRLError
from proxrl.types import Terms


class FlatParameters:
    """Parameters become views of `values`, and their gradients views of `gradient`. Group i is contiguous, at `groups[i]`.

    The loss terms lie behind the gradient in the same buffer, `message`, so that one message sums both over the ranks.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], extra_terms: int = 0) -> None:
        parameters = [parameter for group in groups for parameter in group]
        if not parameters:
            raise ProxRLError("the networks have no parameter that requires a gradient, so there is nothing to train")
        size = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device
        self.values = torch.empty(size, device=device)
        self.message = torch.zeros(size + len(Terms._fields) + extra_terms, device=device)
        self.gradient = self.message[:size]
        self.terms = self.message[size:]  # in the order of `Terms`, then those of the learners
        self.groups: list[slice] = []
        start = 0
        for group in groups:
            begin = start
            for parameter in group:
                end = start + parameter.numel()
                # In the parameter's own memory format: convolutions are channels-last.
                shape, stride = parameter.shape, parameter.stride()
                values, gradient = (flat[start:end].as_strided(shape, stride) for flat in (self.values, self.gradient))
                values.copy_(parameter.detach())
                parameter.data, parameter.grad = values, gradient
                start = end
            self.groups.append(slice(begin, start))

    def clip_gradient(self, max_norm: float | None) -> None:
        """Scale the whole gradient so that its norm is at most `max_norm` (core detail 11)."""
        if max_norm is None:
            return
        if self.gradient.is_cpu:
            # numpy's calls are cheaper here, and reading a number does not block; on a GPU it would.
            gradient = self.gradient.numpy()
            norm = math.sqrt(gradient.dot(gradient))
            if norm > max_norm:
                gradient *= max_norm / (norm + 1e-6)
        else:
            self.gradient.mul_((max_norm / (torch.linalg.vector_norm(self.gradient) + 1e-6)).clamp(max=1.0))
