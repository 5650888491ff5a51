"""The policy as one function of plain tensors, for runtimes without ProxRL such as onnxruntime.

Its inputs are raw observations and its outputs are actions of the environment's action space: normalization, scaling and
clipping are included. Each leaf of the observation and of the action is a separate, named tensor. The state of a memory is an
input and an output too; an episode begins with zeros.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.envs.buffers import stored_dtype
from proxrl.envs.masks import MASK
from proxrl.envs.spaces import Masked, space_tree
from proxrl.policy.distributions import Bernoulli, Beta, Categorical, Distribution, Gaussian, MultiCategorical, Product
from proxrl.policy.policy import Policy
from proxrl.policy.preprocess import Branches, Preprocess
from proxrl.types import Tree

# The beginning of the names of inputs that are the state of a memory; the output of the same name with `next_` follows it.
STATE = "state."


class Input(NamedTuple):
    name: str
    shape: tuple[int, ...]  # of one row
    dtype: np.dtype
    space: gymnasium.Space | None = None  # None for the state of a memory
    preprocess: Preprocess | None = None  # the first operation on it


class ActionPart(NamedTuple):
    """One leaf of the action. Names of outputs end in `suffix`: `action.move`, `logits.move`."""

    suffix: str
    space: gymnasium.Space


class Deployed(nn.Module):
    """`deployed(*inputs) -> {name: tensor}`, every tensor [B, ...], in the order of `inputs` and of `action_parts`.

    Each part of the action has its mode and the parameters of its distribution, for sampling, as outputs. `value` is an output
    unless the critic needs observations that the actor does not: these exist in training only and are not inputs, and neither is
    the state of the critic's memory.
    """

    def __init__(self, policy: Policy, config: Config, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        super().__init__()
        self.policy = policy
        space: Any = observation_space["observation"] if isinstance(observation_space, Masked) else observation_space
        actor_spaces = space_tree(_with_keys(space, config.actor_keys))
        self.names = _names("observation", actor_spaces)
        if isinstance(observation_space, Masked):
            self.names = {"observation": self.names, MASK: MASK}
            actor_spaces = {"observation": actor_spaces, MASK: observation_space[MASK]}
        leaves = tree_leaves(self.names), tree_leaves(actor_spaces), _preprocess_leaves(policy.preprocess, self.names)
        self.inputs = [
            Input(name, leaf.shape, np.dtype(stored_dtype(leaf)), leaf, preprocess)
            for name, leaf, preprocess in zip(*leaves, strict=True)
        ]
        self.gives_value = policy.critic is None or _actor_has_the_critics_keys(config, space)
        state = policy.initial_state(1)[: None if self.gives_value else policy.memory.size]
        self.inputs += [Input(f"{STATE}{n}", tuple(part.shape[1:]), part.numpy().dtype) for n, part in enumerate(state)]
        actions = space_tree(action_space)
        self.action_parts = list(map(ActionPart, tree_leaves(_names("", actions)), tree_leaves(actions)))

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        tensors = dict(zip((one.name for one in self.inputs), inputs, strict=True))
        obs = preprocessed(self.policy.preprocess, tree_map(tensors.__getitem__, self.names))
        state = tuple(tensors[one.name] for one in self.inputs if one.space is None)
        # `starts` is None: to begin an episode, the caller passes zeros as the state.
        values: dict[str, Tensor] = {}
        if self.gives_value:
            distribution, value, state, _ = self.policy.core(obs, state, None)
            values["value"] = value[:, 0]
        else:
            distribution, state = self.policy.act(obs, state, None)
        distributions = [each for each, _ in distribution.parts] if isinstance(distribution, Product) else [distribution]
        actions = tree_leaves(self.policy.head.to_env(distribution.mode(), torch.float32))
        outputs = {f"action{part.suffix}": action for part, action in zip(self.action_parts, actions, strict=True)}
        for part, each in zip(self.action_parts, distributions, strict=True):
            outputs |= {f"{name}{part.suffix}": value for name, value in parameters(each, part.space).items()}
        return outputs | values | {f"next_{STATE}{number}": part for number, part in enumerate(state)}


def _names(prefix: str, spaces_tree: Tree) -> Tree:
    """Return a unique name for each leaf, in the structure of the tree: the keys on its path, joined by dots."""
    taken: set[str] = set()

    def name(path: str, tree: Tree) -> Tree:
        if isinstance(tree, dict):
            return {key: name(f"{path}.{key}", part) for key, part in tree.items()}
        if isinstance(tree, tuple):
            return tuple(name(f"{path}.{index}", part) for index, part in enumerate(tree))
        while path in taken:  # possible because keys may contain dots
            path += "_"
        taken.add(path)
        return path

    return name(prefix, spaces_tree)


def _with_keys(space: gymnasium.Space, keys: Sequence[str] | None) -> gymnasium.Space:
    return spaces.Dict([(key, space[key]) for key in keys]) if keys and isinstance(space, spaces.Dict) else space


def _actor_has_the_critics_keys(config: Config, space: Any) -> bool:
    return config.actor_keys is None or set(config.critic_keys or space) <= set(config.actor_keys)


def preprocessed(preprocess: Preprocess, obs: Tree) -> Tree:
    """Apply `preprocess` to observations in which some keys may be missing."""
    if isinstance(preprocess, Branches) and not preprocess.as_tuple:
        parts = dict(zip(preprocess.keys, preprocess.parts, strict=True))
        return {key: preprocessed(parts[key], value) for key, value in obs.items()}
    return preprocess(obs)


def _preprocess_leaves(preprocess: Preprocess, tree: Tree) -> Iterator[Preprocess]:
    """Yield the preprocessing of each leaf of the tree, in order."""
    if not isinstance(preprocess, Branches):
        yield preprocess
        return
    parts = dict(zip(preprocess.keys, preprocess.parts, strict=True))
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _preprocess_leaves(parts[key], part)


def parameters(distribution: Distribution, space: gymnasium.Space) -> dict[str, Tensor]:
    """Return the parameters of a distribution by name: in the shape of a Box, and for choices, the logits of all in one row."""
    match distribution:
        case Categorical():
            return {"logits": distribution.log_probs}
        case MultiCategorical():
            return {"logits": torch.cat([part.log_probs for part in distribution.parts], -1)}
        case Bernoulli():
            return {"logits": distribution.logits}
        case Gaussian():
            rows = {"mean": distribution.mean, "log_std": distribution.log_std.expand_as(distribution.mean)}
        case Beta():
            rows = {"alpha": distribution.alpha, "beta": distribution.beta}
        case _:
            raise TypeError(f"{type(distribution).__name__} has no parameters to export")
    return {name: row.reshape(row.shape[0], *(space.shape or ())) for name, row in rows.items()}
