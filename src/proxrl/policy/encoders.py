"""Observations in, features out."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Orthogonal weights of this gain and zero biases: small gains keep the first policy near uniform."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Fully connected layers with an activation after each."""

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], activation: str) -> None:
        super().__init__()
        sizes = [input_size, *hidden_sizes]
        self.activation = activation
        self.layers = nn.ModuleList(orthogonal(nn.Linear(inputs, outputs), math.sqrt(2)) for inputs, outputs in pairwise(sizes))
        self.function = ACTIVATIONS[activation]()
        self.output_size = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        features = obs
        for layer in self.layers:
            features = self.function(layer(features))
        return features
