"""`agent.distribution(obs)`: what a policy would do, as numbers and arrays."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.envs.spaces import space_tree, wrong_values
from proxrl.errors import ProxRLError, one_line
from proxrl.policy.continuous_heads import BetaHead
from proxrl.policy.distributions import FORBIDDEN, Bernoulli, Beta, Categorical, Distribution, Gaussian, MultiCategorical, Product
from proxrl.policy.heads import Head, env_actions
from proxrl.policy.make_head import ProductHead
from proxrl.types import Tree


class ActionDistribution:
    """The distribution of the action for one observation, or of one action for each row of a batch.

    Actions are those of the environment, as `agent.act` returns them. For a batch, every array has the rows as its first axis.
    `probabilities`, `mean` and `std` have the structure of the action space, and are None for parts that have no such thing.
    """

    def __init__(
        self, distribution: Distribution, head: Head, action_space: gymnasium.Space, rng: np.random.Generator, single: bool
    ) -> None:
        self._distribution, self._head, self._space, self._rng, self._single = distribution, head, action_space, rng, single
        self._count = len(distribution.entropy())

    def mode(self) -> Tree:
        """Return the action that `agent.act(obs)` takes."""
        return self._to_env(self._distribution.mode())

    def sample(self) -> Tree:
        """Return a random action, as `agent.act(obs, deterministic=False)` does, from the same random numbers. Each call draws
        anew; `act` keeps the noise of --noise gsde for several steps.
        """
        noise = torch.from_numpy(self._head.noise(self._rng, self._count)).to(self._device)
        return self._to_env(self._distribution.sample(noise))

    def log_prob(self, action: Tree) -> Any:
        """Return the log-probability of an action, or of one for each row; minus infinity if its mask forbids it.

        For a Box it is the log-density. That of a Gaussian is not clipped with its actions: it is what PPO learns from. Actions
        of bounded distributions that lie on a bound are moved inside by a millionth of the width.
        """
        tensors = self._from_user(action)
        log_prob = self._distribution.log_prob(self._head.from_env(tensors).to(self._device))
        values = _array(log_prob).astype(np.float64)
        return self._row(np.where(values < FORBIDDEN / 10, -np.inf, values))

    def entropy(self) -> Any:
        """Return the entropy in nats; for a Box the differential entropy."""
        return self._row(_array(self._distribution.entropy()).astype(np.float64))

    @property
    def probabilities(self) -> Any:
        """Discrete: of every action [n]. MultiDiscrete: a tuple with those of each entry. MultiBinary: of a one, for each bit."""
        return self._of_leaves(self._probabilities)

    @property
    def mean(self) -> Any:
        """Box: the mean. For a Gaussian, it is that before clipping or squashing by tanh."""
        return self._of_leaves(lambda head, distribution: self._moments(head, distribution)[0])

    @property
    def std(self) -> Any:
        """Box: the standard deviation. For a Gaussian, it is that before clipping or squashing by tanh."""
        return self._of_leaves(lambda head, distribution: self._moments(head, distribution)[1])

    def __repr__(self) -> str:
        rows = "one observation" if self._single else f"{self._count} observations"
        return f"<ActionDistribution over {self._space} for {rows}>"

    @property
    def _device(self) -> torch.device:
        return self._distribution.entropy().device

    def _row(self, values: NDArray[Any]) -> Any:
        return values[0].item() if self._single else values

    def _first(self, values: NDArray[Any]) -> NDArray[Any]:
        return values[0] if self._single else values

    def _to_env(self, action: Tensor) -> Tree:
        actions = env_actions(self._head, _array(action))
        return tree_map(lambda leaf: leaf[0], actions) if self._single else actions

    def _from_user(self, action: Tree) -> Tree:
        """Return actions as tensors with one row each, of whole numbers or doubles."""

        def convert(leaf: gymnasium.Space, value: Any) -> Tensor:
            array, expected = np.asarray(value), (() if self._single else (self._count,)) + tuple(leaf.shape or ())
            if array.shape != expected:
                raise ProxRLError(f"the action has shape {array.shape}, but must have {expected}, that of {leaf} for each row")
            wrong = wrong_values(leaf, array)
            if wrong is not None:
                raise ProxRLError(f"the action holds {array[wrong][0]}, which is not in {leaf}")
            kind = np.int64 if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else np.float64
            return torch.from_numpy(np.array(array[None] if self._single else array, kind))

        try:
            return tree_map(convert, space_tree(self._space), action)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ProxRLError(f"the action does not have the structure of {self._space} ({one_line(error)})") from None

    def _of_leaves(self, function: Callable[[Head, Distribution], Any]) -> Any:
        """Return a property of every leaf of the action space, in its structure."""
        if not isinstance(self._head, ProductHead):
            return function(self._head, self._distribution)
        assert isinstance(self._distribution, Product)
        parts = iter([function(head, part) for head, (part, _) in zip(self._head.heads, self._distribution.parts, strict=True)])
        return tree_map(lambda _: next(parts), self._head.tree)

    def _probabilities(self, head: Head, distribution: Distribution) -> Any:
        match distribution:
            case Categorical():
                return self._first(_array(distribution.log_probs.exp()))
            case MultiCategorical():
                return tuple(self._first(_array(part.log_probs.exp())) for part in distribution.parts)
            case Bernoulli():
                return self._first(_array(torch.sigmoid(distribution.logits)).reshape(-1, *head.env_shape))
        return None

    def _moments(self, head: Head, distribution: Distribution) -> tuple[Any, Any]:
        match distribution:
            case Gaussian():
                mean, std = distribution.mean, distribution.log_std.exp().expand_as(distribution.mean)
            case Beta():
                assert isinstance(head, BetaHead)
                alpha, beta = distribution.alpha.double().cpu(), distribution.beta.double().cpu()
                total, lowest, width = alpha + beta, head.lowest.cpu(), head.width.cpu()
                mean = lowest + width * alpha / total
                std = width * torch.sqrt(alpha * beta / (total + 1)) / total
            case _:
                return None, None
        first, second = (self._first(_array(each).reshape(-1, *head.env_shape)) for each in (mean, std))
        return first, second


def count_rows(rows: Tree) -> int:
    """Return the number of rows of observations [N, ...]."""
    return len(next(tree_leaves(rows)))


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array
