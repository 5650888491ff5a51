"""Optimizers on one flat vector, or on a part of it.

They compute what torch.optim does, without its bookkeeping, which takes ten times as long as the step of a small network.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from proxrl.config import Coefficients, Phase
from proxrl.engine.flat import FlatParameters
from proxrl.errors import ProxRLError


class Rule(Protocol):
    """How a vector is updated from its gradient. `tensors` is its state between steps, by name; loading a checkpoint copies into
    it.
    """

    tensors: dict[str, Tensor]

    def step(self, values: Tensor, gradient: Tensor, learning_rate: float, weight_decay: float) -> None: ...


class Adam:
    """Adam; AdamW if `decoupled`. Adam adds weight decay to the gradient.

    It calls the kernels behind `torch.optim.Adam(fused=True)` directly. They are private to torch: this is the only place that
    uses them, and tests/engine/test_optimizers.py compares them with torch.optim.
    """

    def __init__(self, values: Tensor, epsilon: float, decoupled: bool = False) -> None:
        self.epsilon, self.decoupled = epsilon, decoupled
        self.steps = torch.zeros((), device=values.device)
        self.mean, self.square = torch.zeros_like(values), torch.zeros_like(values)
        self.tensors = {"steps": self.steps, "mean": self.mean, "square": self.square}

    def step(self, values: Tensor, gradient: Tensor, learning_rate: float, weight_decay: float) -> None:
        self.steps += 1
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        kernel(
            [values],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self.steps],
            lr=learning_rate,
            beta1=0.9,
            beta2=0.999,
            eps=self.epsilon,
            weight_decay=weight_decay,
            amsgrad=False,
            maximize=False,
        )


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, values: Tensor, momentum: float) -> None:
        self.momentum = momentum
        self.velocity = torch.zeros_like(values)
        self.tensors = {"velocity": self.velocity}

    def step(self, values: Tensor, gradient: Tensor, learning_rate: float, weight_decay: float) -> None:
        self.velocity.mul_(self.momentum).add_(gradient).add_(values, alpha=weight_decay)
        values.sub_(self.velocity, alpha=learning_rate)


class RMSprop:
    """Divides the gradient by the root of the running mean of its square."""

    def __init__(self, values: Tensor, epsilon: float) -> None:
        self.epsilon = epsilon
        self.square = torch.zeros_like(values)
        self.tensors = {"square": self.square}

    def step(self, values: Tensor, gradient: Tensor, learning_rate: float, weight_decay: float) -> None:
        slope = gradient.add(values, alpha=weight_decay)
        self.square.mul_(0.99).addcmul_(slope, slope, value=0.01)
        values.addcdiv_(slope, self.square.sqrt().add_(self.epsilon), value=-learning_rate)


def make_rule(name: str, values: Tensor, epsilon: float, momentum: float) -> Rule:
    match name:
        case "adam":
            return Adam(values, epsilon)
        case "adamw":
            return Adam(values, epsilon, decoupled=True)
        case "sgd":
            return SGD(values, momentum)
        case "rmsprop":
            return RMSprop(values, epsilon)
    raise ProxRLError(f"there is no optimizer {name!r}; use adam, adamw, sgd or rmsprop")


class Optimizer:
    """One rule for all parameters, or one for the policy and one for the value."""

    def __init__(self, parameters: FlatParameters, rules: Sequence[str], epsilon: float, momentum: float) -> None:
        whole = [slice(0, len(parameters.values))]
        parts = whole if len(rules) == 1 else parameters.groups
        self.values = [parameters.values[part] for part in parts]
        self.gradients = [parameters.gradient[part] for part in parts]
        self.rules = [make_rule(name, values, epsilon, momentum) for name, values in zip(rules, self.values, strict=True)]

    def step(self, now: Coefficients, phase: Phase) -> None:
        rates = now.learning_rate, now.learning_rate if now.value_learning_rate is None else now.value_learning_rate
        learns = phase.policy, phase.value
        # Not strict: a single rule uses the rate and flag of the policy. Those of the value are the same then, because
        # `Config.optimizers` names two rules if policy and value learn separately or at different rates.
        for rule, values, gradient, rate, learning in zip(self.rules, self.values, self.gradients, rates, learns, strict=False):
            if learning:
                rule.step(values, gradient, rate, now.weight_decay)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state to save, by name; loading a checkpoint copies into these tensors."""
        return {
            f"optimizer.{index}.{name}": tensor for index, rule in enumerate(self.rules) for name, tensor in rule.tensors.items()
        }
