"""Parameters and gradients in one flat buffer each: averaging, clipping and stepping are one call, whatever the network."""

import math

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of a module become views of `values`; their gradients, of `gradient`.

    `carried` is a tail of the gradient's buffer for the few numbers that ranks must share along with it, so that one
    message does.
    """

    def __init__(self, module: nn.Module, carried: int) -> None:
        parameters = list(module.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device
        self.values = torch.empty(size, device=device)
        self.message = torch.zeros(size + carried, device=device)
        self.gradient = self.message[:size]
        self.carried = self.message[size:]
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            self.values[start:end] = parameter.detach().reshape(-1)
            parameter.data = self.values[start:end].view_as(parameter)
            parameter.grad = self.gradient[start:end].view_as(parameter)
            start = end

    def clip_gradient(self, max_norm: float | None) -> None:
        """Scale the whole gradient so that its norm is at most `max_norm` (core detail 11)."""
        if max_norm is None:
            return
        if self.gradient.is_cpu:
            # Numpy's calls are the cheaper ones here, and reading a number stalls nothing, as it would on another device.
            gradient = self.gradient.numpy()
            norm = math.sqrt(gradient.dot(gradient))
            if norm > max_norm:
                gradient *= max_norm / (norm + 1e-6)
        else:
            self.gradient.mul_((max_norm / (torch.linalg.vector_norm(self.gradient) + 1e-6)).clamp(max=1.0))


class FlatAdam:
    """Adam on one flat vector. Calls the kernel behind `torch.optim.Adam(fused=True)` itself: for small networks the
    wrapping around it takes ten times as long as the step.
    """

    def __init__(self, parameters: FlatParameters, epsilon: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters = parameters
        self.epsilon, self.betas = epsilon, betas
        self.steps = torch.zeros((), device=parameters.values.device)
        self.mean = torch.zeros_like(parameters.values)
        self.square = torch.zeros_like(parameters.values)

    def step(self, learning_rate: float) -> None:
        self.steps += 1
        torch._fused_adam_(
            [self.parameters.values],
            [self.parameters.gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """What to save; loading copies into these."""
        return {"adam.steps": self.steps, "adam.mean": self.mean, "adam.square": self.square}
