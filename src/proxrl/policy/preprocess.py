"""What is done to observations once per rollout, before any weight: floats, whitened or not, and one-hot for discrete values.

Observations keep their structure: a Dict comes out as a dict, an array as an array of its shape. `output_space` describes
what comes out, and is what networks are built for.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from proxrl.envs.spaces import Masked, is_image, refuse
from proxrl.policy.statistics import EPSILON, RunningMoments
from proxrl.types import Tree
from proxrl.world.api import World


class Preprocess(nn.Module):
    """A module from rows of observations [B, ...] to what networks take."""

    output_space: gymnasium.Space

    def forward(self, obs: Any) -> Any:
        raise NotImplementedError

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        """Take in what a rollout saw, obs [T + 1, N, ...] and valid [T, N], after the update that learnt from it."""


class Floats(Preprocess):
    """Numbers of any type as floats."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = _box(space.shape or ())

    def forward(self, obs: Tensor) -> Tensor:
        return obs.float()


class Pixels(Preprocess):
    """Images, which stay bytes: the network scales them, where a minibatch of them is all there is."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = space

    def forward(self, obs: Any) -> Any:
        return obs


class Whiten(Preprocess):
    """Numbers whitened by running statistics, then clipped (continuous details 6 and 7)."""

    def __init__(self, space: gymnasium.Space, clip: float | None) -> None:
        super().__init__()
        shape = space.shape or ()
        self.moments = RunningMoments(shape)
        self.clip = math.inf if clip is None else clip
        self.output_space = _box(shape, self.clip)

    def forward(self, obs: Tensor) -> Tensor:
        scale = torch.rsqrt(self.moments.variance + EPSILON)
        return ((obs.float() - self.moments.mean) * scale).clamp(-self.clip, self.clip)

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        self.moments.merge(obs[:-1][valid], world)


class OneHot(Preprocess):
    """Discrete observations as unit vectors; several of them, as in MultiDiscrete, side by side."""

    start: Tensor
    begin: Tensor

    def __init__(self, sizes: NDArray[np.integer], start: NDArray[np.integer]) -> None:
        super().__init__()
        ends = np.cumsum(sizes)
        self.width = int(ends[-1]) if len(ends) else 0
        self.register_buffer("start", torch.from_numpy(start.astype(np.int64)), persistent=False)
        self.register_buffer("begin", torch.from_numpy((ends - sizes).astype(np.int64)), persistent=False)
        self.output_space = _box((self.width,), 1.0)

    def forward(self, obs: Tensor) -> Tensor:
        columns = obs.reshape(obs.shape[0], len(self.start)).long() - self.start + self.begin
        return torch.zeros(obs.shape[0], self.width, device=obs.device).scatter_(1, columns, 1.0)


class Mask(Preprocess):
    """What is allowed: no network takes it, the head does."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__()
        self.output_space = space

    def forward(self, obs: Tensor) -> Tensor:
        return obs.bool()


class Branches(Preprocess):
    """Dict and Tuple observations: each entry by a preprocess of its own."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, parts: Mapping[Any, Preprocess]) -> None:
        super().__init__()
        self.keys = list(parts)
        self.as_tuple = isinstance(space, spaces.Tuple)
        # By number: a module's name may hold no dot, but a key may.
        self.parts: Any = nn.ModuleList(parts.values())
        outputs = [part.output_space for part in parts.values()]
        self.output_space = spaces.Tuple(outputs) if self.as_tuple else spaces.Dict(list(zip(self.keys, outputs, strict=True)))

    def forward(self, obs: Any) -> Any:
        done = [part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)]
        return tuple(done) if self.as_tuple else dict(zip(self.keys, done, strict=True))

    def merge(self, obs: Tree, valid: NDArray[np.bool_], world: World) -> None:
        for key, part in zip(self.keys, self.parts, strict=True):
            part.merge(obs[key], valid, world)


def make_preprocess(space: gymnasium.Space, normalize: bool, clip: float | None) -> Preprocess:
    match space:
        case Masked():
            observation = make_preprocess(space["observation"], normalize, clip)
            return Branches(space, {"observation": observation, "action_mask": Mask(space["action_mask"])})
        case spaces.Dict():
            return Branches(space, {key: make_preprocess(part, normalize, clip) for key, part in space.items()})
        case spaces.Tuple():
            return Branches(space, {index: make_preprocess(part, normalize, clip) for index, part in enumerate(space)})
        case spaces.Discrete():
            return OneHot(np.array([space.n]), np.array([space.start]))
        case spaces.MultiDiscrete():
            return OneHot(space.nvec.reshape(-1), space.start.reshape(-1))
        case spaces.MultiBinary():
            return Floats(space)
        case spaces.Box() if is_image(space):
            return Pixels(space)
        case spaces.Box():
            return Whiten(space, clip) if normalize else Floats(space)
    raise refuse(space)


def _box(shape: tuple[int, ...], limit: float = np.inf) -> spaces.Box:
    return spaces.Box(-limit, limit, shape, np.float32)
