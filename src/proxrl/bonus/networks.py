"""The networks of the built-in bonuses."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import gymnasium
import torch
from torch import nn

from proxrl.common.seeding import Purpose, integer_seed
from proxrl.config import Config
from proxrl.policy.encoders import orthogonal
from proxrl.policy.image_encoders import IMAGE_ENCODERS, FirstConvolution
from proxrl.policy.networks import MLP_NAME, make_encoder


@contextmanager
def seeded(seed: int, number: int) -> Iterator[None]:
    """Draw initial weights that depend on the seed and the number of the bonus alone, so they are the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(seed, Purpose.BONUS, number))
        yield


def bonus_encoder(config: Config, space: gymnasium.Space, bytes_scale: int = FirstConvolution.scale) -> tuple[nn.Module, int]:
    """Return an encoder of preprocessed observations, and the number of its outputs: like the policy's if that is a built-in one,
    with relu. Images are divided by `bytes_scale`.
    """
    name = config.encoder if config.encoder in (MLP_NAME, *IMAGE_ENCODERS) else None
    encoder, size = make_encoder(config.replace(encoder=name, encoder_kwargs={}, activation="relu"), space)
    for module in encoder.modules():
        if isinstance(module, FirstConvolution):
            module.scale = bytes_scale
    return encoder, size


def layers(*sizes: int) -> nn.Sequential:
    """Return fully connected layers of these sizes, with relu between them."""
    *hidden, last = pairwise(sizes)
    modules = [module for pair in hidden for module in (orthogonal(nn.Linear(*pair), math.sqrt(2)), nn.ReLU())]
    return nn.Sequential(*modules, orthogonal(nn.Linear(*last), gain=1.0))
