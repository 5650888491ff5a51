"""A custom encoder: any torch.nn.Module from observations to features. This one has a convolution, for images.

python examples/own_encoder.py
proxrl train examples.own_encoder:make_env --encoder examples.own_encoder:Encoder --encoder-kwargs channels=4
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

import proxrl


class Lights(gymnasium.Env):
    """An image of 8 x 8 pixels with one light: is it in the left half (0) or in the right half (1)?"""

    observation_space = spaces.Box(0.0, 1.0, (1, 8, 8), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        row, column = self.np_random.integers(8, size=2)
        self.image = np.zeros((1, 8, 8), np.float32)
        self.image[0, row, column] = 1.0
        self.right = column >= 4
        return self.image.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.image.copy(), float(bool(action) == self.right), True, False, {}


def make_env() -> gymnasium.Env:
    return Lights()


class Encoder(nn.Module):
    """Built twice, for the policy and for the value. Its inputs are batches of the environment's images, [B, 1, 8, 8]."""

    def __init__(self, observation_space: spaces.Box, channels: int = 4) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(observation_space.shape[0], channels, kernel_size=3, padding=1)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.convolution(obs)).amax(2).flatten(1)  # features [B, n], for any n


if __name__ == "__main__":
    settings = {"total_steps": 16_384, "learning_rate": 3e-3, "num_minibatches": 8, "threads": 1}  # more would not help
    result = proxrl.train(make_env, encoder=Encoder, encoder_kwargs={"channels": 4}, **settings, clobber=True)
    scores = proxrl.evaluate(result.path, env=make_env, episodes=100)
    print(f"correct for {100 * scores['deterministic'].mean:.0f} of 100 images")
