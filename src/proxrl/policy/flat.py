"""Parameters and gradients in one flat buffer each: averaging, clipping and stepping are one call, whatever the network."""

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters of a module become views of `values`; their gradients, of `gradient`.

    `carried` is a tail of the gradient's buffer for the few numbers that ranks must share along with it, so that one message does.
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
        if max_norm is not None:
            self.gradient.mul_((max_norm / (self.gradient.norm() + 1e-6)).clamp(max=1.0))


class FlatAdam:
    """Adam on one flat vector: torch.optim.Adam's arithmetic at a fifth of its overhead, which is what counts for small networks."""

    def __init__(self, parameters: FlatParameters, epsilon: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters = parameters
        self.epsilon, self.betas = epsilon, betas
        self.steps = 0
        self.mean = torch.zeros_like(parameters.values)
        self.square = torch.zeros_like(parameters.values)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        self.steps += 1
        (first, second), gradient = self.betas, self.parameters.gradient
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        unbias = (1 - second**self.steps) ** 0.5
        # eps is added to the unbiased root, as in the paper: scaling it instead of the root saves a pass over the vector.
        root = self.square.sqrt().add_(self.epsilon * unbias)
        self.parameters.values.addcdiv_(self.mean, root, value=-learning_rate * unbias / (1 - first**self.steps))

    def tensors(self) -> dict[str, Tensor]:
        """What to save besides `steps`; loading copies into these."""
        return {"adam.mean": self.mean, "adam.square": self.square}
