"""Generalized state-dependent exploration: noise that is a function of the state, and the same function for several steps.

The noise of an action is features @ theta, with a matrix theta ~ N(0, std^2) [features, actions] that is drawn once per interval.
So equal states get equal noise, and actions change smoothly, which robots need. Given the state, an action is Gaussian with the
variance features^2 @ std^2. As in Stable-Baselines3, the gradient of this variance does not reach the features. (Raffin, Kober
and Stulp, 2020.)
"""

import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.policy.continuous_heads import GaussianHead, Std, TanhHead
from proxrl.policy.distributions import Gaussian, SquashedGaussian
from proxrl.policy.heads import Head

# Added to the variance, which is zero if all features are.
LEAST_VARIANCE = 1e-6


class WithFeatures(nn.Module):
    """The last layer of a policy that gives the head the mean [B, d] and the features [B, F] that it is computed from."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.layer(features), features.detach()], -1)


class FeatureNoise:
    """How `ExploringGaussian` and `ExploringSquashedGaussian` are sampled: noise [B, F * d] is a standard normal matrix."""

    mean: Tensor
    features: Tensor  # [B, F]
    matrix_std: Tensor  # [F, d]

    def sample(self, noise: Tensor) -> Tensor:
        theta = self.matrix_std * noise.view(-1, *self.matrix_std.shape)
        return self.mean + torch.einsum("bf,bfd->bd", self.features, theta)


class ExploringGaussian(FeatureNoise, Gaussian):
    def __init__(self, mean: Tensor, features: Tensor, matrix_std: Tensor) -> None:
        super().__init__(mean, _log_std(features, matrix_std))
        self.features, self.matrix_std = features, matrix_std


class ExploringSquashedGaussian(FeatureNoise, SquashedGaussian):
    def __init__(self, mean: Tensor, features: Tensor, matrix_std: Tensor, log_width: Tensor) -> None:
        super().__init__(mean, _log_std(features, matrix_std), log_width)
        self.features, self.matrix_std = features, matrix_std


def _log_std(features: Tensor, matrix_std: Tensor) -> Tensor:
    """Return the log standard deviation of each action [B, d]."""
    return 0.5 * torch.log(features.square() @ matrix_std.square() + LEAST_VARIANCE)


class ExploringHead(GaussianHead):
    """The head of a Box with such noise, whose samples are clipped to the bounds. `log_std` is that of theta [F, d]."""

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std, features: int, interval: int) -> None:
        super().__init__(space, log_std_init, std)
        _explore(self, features, interval)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> ExploringGaussian:
        return ExploringGaussian(*_split(self, inputs), self.log_std.exp())


class ExploringTanhHead(TanhHead):
    """The same, squashed by tanh."""

    def __init__(self, space: spaces.Box, log_std_init: float, std: Std, features: int, interval: int) -> None:
        super().__init__(space, log_std_init, std)
        _explore(self, features, interval)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> ExploringSquashedGaussian:
        return ExploringSquashedGaussian(*_split(self, inputs), self.log_std.exp(), self.log_width)


def _explore(head: GaussianHead, features: int, interval: int) -> None:
    """Replace the standard deviations of actions by those of theta, and set the sizes of inputs and noise."""
    (size,) = head.layout.shape
    initial = head.log_std.detach()[:1].expand(features, size).clone()
    head.log_std = nn.Parameter(initial) if isinstance(head.log_std, nn.Parameter) else initial
    head.inputs, head.noise_size, head.noise_interval = size + features, size * features, interval


def _split(head: GaussianHead, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the features."""
    (size,) = head.layout.shape
    return inputs[:, :size], inputs[:, size:]


def explore(config: Config, space: spaces.Space, head: Head, action: nn.Linear) -> tuple[Head, nn.Module]:
    """Return the head and the last layer of a policy as --noise wants them: as they are, or those of gsde."""
    if config.noise is None or not head.means:
        return head, action
    if not isinstance(space, spaces.Box):
        raise ProxRLError(f"--noise gsde is for a Box of actions alone, but the action space is {space}; leave it out")
    kind = ExploringTanhHead if config.action_distribution == "tanh" else ExploringHead
    interval = config.noise_interval or config.rollout_steps
    return kind(space, config.log_std_init, config.std, action.in_features, interval), WithFeatures(action)
