"""What is done to observations once per rollout, before any weight: whitening, one-hot, flattening to a vector."""

import math

import gymnasium
import torch
from torch import Tensor, nn

from proxrl.collect.normalize import EPSILON, RunningMoments
from proxrl.errors import ProxRLError
from proxrl.types import Rollout
from proxrl.world.api import World


class Flatten(nn.Module):
    """Box observations of any rank as float vectors."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.output_size = math.prod(shape)

    def forward(self, obs: Tensor) -> Tensor:
        return obs.float().reshape(*obs.shape[: obs.dim() - len(self.shape)], self.output_size)

    def merge(self, rollout: Rollout, world: World) -> None:
        """Take in what a rollout saw, after the update that learnt from it: nothing here."""


class Whiten(Flatten):
    """Box observations whitened by running statistics, then clipped (continuous details 6 and 7)."""

    def __init__(self, shape: tuple[int, ...], clip: float | None) -> None:
        super().__init__(shape)
        self.moments = RunningMoments((self.output_size,))
        self.clip = math.inf if clip is None else clip

    def forward(self, obs: Tensor) -> Tensor:
        scale = torch.rsqrt(self.moments.variance + EPSILON)
        return ((super().forward(obs) - self.moments.mean) * scale).clamp(-self.clip, self.clip)

    def merge(self, rollout: Rollout, world: World) -> None:
        seen = rollout.obs[:-1][rollout.valid]
        self.moments.merge(seen.reshape(len(seen), self.output_size), world)


class OneHot(Flatten):
    """Discrete observations as unit vectors."""

    def __init__(self, size: int, start: int) -> None:
        super().__init__(())
        self.output_size, self.start = size, start

    def forward(self, obs: Tensor) -> Tensor:
        return nn.functional.one_hot(obs.long() - self.start, self.output_size).float()


def make_preprocess(space: gymnasium.Space, normalize: bool, clip: float | None) -> Flatten:
    if isinstance(space, gymnasium.spaces.Discrete):
        return OneHot(int(space.n), int(space.start))
    if isinstance(space, gymnasium.spaces.Box):
        return Whiten(space.shape, clip) if normalize else Flatten(space.shape)
    raise ProxRLError(f"the observation space {space} is not supported; wrap the environment so that it is a Box or Discrete")
