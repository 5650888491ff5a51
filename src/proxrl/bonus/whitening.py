"""Observations as the networks of a bonus see them: whitened by running statistics of the bonus itself and clipped to +-5.

The statistics include a rollout before its observations are whitened: no policy acts on them, so they need not be frozen, and
the first rollout is whitened too. They stay the same until the update has ended.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from proxrl.common.chunks import chunk_slices
from proxrl.envs.spaces import is_image
from proxrl.policy.preprocess import Branches, Preprocess, Whiten, make_preprocess
from proxrl.types import Tree
from proxrl.world.api import World

CLIP = 5.0


class WhitenPixels(Whiten):
    """Whitens every pixel of the newest frame; the older frames of a stack were the newest once."""

    def __init__(self, space: spaces.Box, frame_stack: int) -> None:
        channels = space.shape[0] // frame_stack
        newest = spaces.Box(space.low[-channels:], space.high[-channels:], dtype=space.dtype.type)
        super().__init__(newest, CLIP)
        self.channels = channels
        self.output_space = newest  # floats of the same shape, but still an image, for which encoders are chosen

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs[:, -self.channels :])

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        def frames() -> Iterator[NDArray[Any]]:
            row_size = valid.shape[1] * int(np.prod(obs.shape[2:]))
            for steps in chunk_slices(len(valid), row_size):
                yield obs[steps][valid[steps]][:, -self.channels :]

        self.moments.merge_chunks(frames(), world)


def make_whitening(space: gymnasium.Space, frame_stack: int) -> Preprocess:
    """Return the preprocessing that whitens every Box, images too; discrete entries become one-hot vectors."""
    match space:
        case spaces.Dict():
            return Branches(space, {key: make_whitening(part, frame_stack) for key, part in space.items()})
        case spaces.Tuple():
            return Branches(space, {index: make_whitening(part, frame_stack) for index, part in enumerate(space)})
        case spaces.Box() if is_image(space):
            return WhitenPixels(space, frame_stack)
    return make_preprocess(space, normalize=True, clip=CLIP)
