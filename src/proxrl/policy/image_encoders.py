"""Encoders of images. Images stay bytes until here: scaling them to [0, 1] is part of a network's first layer.

Tensors have torch's usual shape [B, channels, height, width], but the channels are last in memory (torch.channels_last), which
is the fastest layout for convolutions on CPUs and recent GPUs.
"""

import abc
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import conv2d

from proxrl.common.tree import tree_leaves
from proxrl.envs.spaces import channels_assumption, channels_last, is_image, space_tree
from proxrl.errors import ProxRLError
from proxrl.policy.encoders import MLP, orthogonal
from proxrl.types import Tree

SMALLEST_NATURE = 36  # pixels each way; the three strided convolutions leave nothing of smaller images

Channels: TypeAlias = Literal["auto", "first", "last"]


class ToFloat(nn.Module):
    """Convert bytes, [B, channels, height, width] or [B, height, width, channels], to floats of the same values.

    The output is [B, channels, height, width]. With "auto" the smaller one of the first and the last axis is taken for the
    channels: cameras put them last, stacks of frames first. `assumption` says so if that may be wrong.
    """

    def __init__(self, space: gymnasium.Space, channels: Channels = "auto") -> None:
        super().__init__()
        shape = space.shape or ()
        self.last = channels_last(shape, channels)
        self.channels, self.height, self.width = (shape[2], shape[0], shape[1]) if self.last else shape
        self.assumption = channels_assumption(shape, channels)

    def forward(self, obs: Tensor) -> Tensor:
        image = obs.permute(0, 3, 1, 2) if self.last else obs
        return image.float().contiguous(memory_format=torch.channels_last)


def image_assumptions(policy: nn.Module) -> list[str]:
    """Return a line for each shape of images whose channels had to be guessed, for the user to confirm or correct."""
    lines = [module.assumption for module in policy.modules() if isinstance(module, ToFloat)]
    return list(dict.fromkeys(line for line in lines if line is not None))


class FirstConvolution(nn.Conv2d):
    """A convolution of bytes. To scale them to [0, 1] (Atari detail 9), it divides its weights by 255 instead of all pixels."""

    scale = 255

    def forward(self, image: Tensor) -> Tensor:
        return conv2d(image, self.weight / self.scale, self.bias, self.stride, self.padding)


class ImageEncoder(nn.Module, abc.ABC):
    """Convolutions, then one linear layer."""

    output_size: int
    gain: float | None = math.sqrt(2)  # of the orthogonal initial weights; None for torch's default initialization

    def __init__(self, space: gymnasium.Space, channels: Channels = "auto") -> None:
        super().__init__()
        self.to_float = ToFloat(space, channels)
        self.convolutions = self.layers(self.to_float.channels)
        with torch.no_grad():
            image = torch.zeros(1, self.to_float.channels, self.to_float.height, self.to_float.width)
            size = self.convolutions(image).numel()
        self.linear = nn.Linear(size, self.output_size)
        if self.gain is not None:
            for layer in (*self.convolutions, self.linear):
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    orthogonal(layer, self.gain)

    @abc.abstractmethod
    def layers(self, channels: int) -> nn.Sequential:
        """Build the convolutions; `self.to_float` has the size of the images."""

    def forward(self, obs: Tensor) -> Tensor:
        return torch.relu(self.linear(self.convolutions(self.to_float(obs)).flatten(1)))


class NatureCNN(ImageEncoder):
    """The three convolutions of the DQN paper (Atari detail 8)."""

    output_size = 512

    def layers(self, channels: int) -> nn.Sequential:
        height, width = self.to_float.height, self.to_float.width
        if min(height, width) < SMALLEST_NATURE:
            raise ProxRLError(
                f"--encoder nature needs images of {SMALLEST_NATURE} pixels or more each way, not {height} x {width}; use small"
            )
        first, second, third = FirstConvolution(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU())


class SmallCNN(ImageEncoder):
    """Two convolutions, for images of a few dozen pixels such as the view of a grid world."""

    output_size = 128

    def layers(self, channels: int) -> nn.Sequential:
        first, second = FirstConvolution(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class ImpalaCNN(ImageEncoder):
    """The residual network of the IMPALA paper, with torch's default initialization, as in the reference implementation."""

    output_size = 256
    gain = None

    def layers(self, channels: int) -> nn.Sequential:
        blocks: list[nn.Module] = []
        for number, width in enumerate((16, 32, 32)):
            convolution = (FirstConvolution if number == 0 else nn.Conv2d)(channels, width, 3, padding=1)
            blocks += [convolution, nn.MaxPool2d(3, stride=2, padding=1)]
            blocks += [Residual(width), Residual(width)]
            channels = width
        return nn.Sequential(*blocks, nn.ReLU())


class Residual(nn.Module):
    """Return x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(torch.relu(image))))
        return image + change


IMAGE_ENCODERS: dict[str, type[ImageEncoder]] = {"nature": NatureCNN, "impala": ImpalaCNN, "small": SmallCNN}


def default_encoder(space: gymnasium.Space, channels: Channels) -> str:
    """Return the name of the encoder that suits images of this size."""
    image = ToFloat(space, channels)
    return "nature" if min(image.height, image.width) >= SMALLEST_NATURE else "small"


def has_image(space: gymnasium.Space) -> bool:
    """Return whether any entry of the space is an image."""
    return any(is_image(leaf) for leaf in tree_leaves(space_tree(space)))


class Mixed(nn.Module):
    """An encoder of observations that have images and other entries: convolutions for each image, one MLP for all the rest."""

    def __init__(
        self,
        space: gymnasium.Space,
        name: str | None,
        hidden_sizes: Sequence[int],
        activation: str,
        channels: Channels = "auto",
    ) -> None:
        super().__init__()
        leaves = list(tree_leaves(space_tree(space)))
        self.is_image = [is_image(leaf) for leaf in leaves]
        images = [leaf for leaf, image in zip(leaves, self.is_image, strict=True) if image]
        others = spaces.Tuple([leaf for leaf, image in zip(leaves, self.is_image, strict=True) if not image])
        encoders = [IMAGE_ENCODERS[name or default_encoder(image, channels)](image, channels) for image in images]
        self.images = nn.ModuleList(encoders)
        self.rest = MLP(others, hidden_sizes, activation)
        self.output_size = self.rest.output_size + sum(encoder.output_size for encoder in encoders)

    def forward(self, obs: Tree) -> Tensor:
        leaves = list(zip(tree_leaves(obs), self.is_image, strict=True))
        images = (leaf for leaf, image in leaves if image)
        features = [encoder(image) for encoder, image in zip(self.images, images, strict=True)]
        return torch.cat([*features, self.rest(tuple(leaf for leaf, image in leaves if not image))], 1)
