"""A policy as one function of plain tensors: what a runtime without ProxRL, such as onnxruntime, is given.

Raw observations in, actions as the environment takes them out: normalisation and unscaling are part of it. Every leaf of the
observation and of the action is a tensor of its own, with a name. A memory's state goes in and comes out beside them.
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


class Input(NamedTuple):
    name: str
    shape: tuple[int, ...]  # of one row
    dtype: np.dtype
    space: gymnasium.Space | None = None  # None for the state of a memory
    preprocess: Preprocess | None = None  # what is done to it first


class ActionPart(NamedTuple):
    """One leaf of the action; `suffix` tells it from others in the names of outputs: `action.move`, `logits.move`."""

    suffix: str
    space: gymnasium.Space


class Deployed(nn.Module):
    """`deployed(*inputs) -> {name: tensor}`, every tensor [B, ...], in the order of `inputs` and of `action_parts`.

    For each part of the action its most likely value, and the parameters of its distribution to sample from. `value` is there
    where the critic sees no more than the actor does: what is known in training alone is no input.
    """

    def __init__(self, policy: Policy, config: Config, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        super().__init__()
        self.policy = policy
        observed: Any = observation_space["observation"] if isinstance(observation_space, Masked) else observation_space
        seen = space_tree(_choose(observed, config.actor_keys))
        self.names = _names("observation", seen)
        if isinstance(observation_space, Masked):
            self.names, seen = {"observation": self.names, MASK: MASK}, {"observation": seen, MASK: observation_space[MASK]}
        steps = _leaves(policy.preprocess, self.names)
        self.inputs = [
            Input(name, leaf.shape, np.dtype(stored_dtype(leaf)), leaf, step)
            for name, leaf, step in zip(tree_leaves(self.names), tree_leaves(seen), steps, strict=True)
        ]
        state = enumerate(policy.memory.initial_state(1))
        self.inputs += [Input(f"state.{number}", tuple(part.shape[1:]), part.numpy().dtype) for number, part in state]
        self.gives_value = policy.critic is None or _critic_sees_no_more(config, observed)
        actions = space_tree(action_space)
        self.action_parts = list(map(ActionPart, tree_leaves(_names("", actions)), tree_leaves(actions)))

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        given = dict(zip((one.name for one in self.inputs), inputs, strict=True))
        obs = prepared(self.policy.preprocess, tree_map(given.__getitem__, self.names))
        state = tuple(given[one.name] for one in self.inputs if one.space is None)
        # No row begins an episode here: whoever starts one gives the initial state.
        values: dict[str, Tensor] = {}
        if self.gives_value:
            distribution, values["value"], state = self.policy.core(obs, state, None)
        else:
            distribution, state = self.policy.act(obs, state, None)
        distributions = [each for each, _ in distribution.parts] if isinstance(distribution, Product) else [distribution]
        actions = tree_leaves(self.policy.head.to_env(distribution.mode()))
        outputs = {f"action{part.suffix}": action for part, action in zip(self.action_parts, actions, strict=True)}
        for part, each in zip(self.action_parts, distributions, strict=True):
            outputs |= {f"{name}{part.suffix}": value for name, value in parameters(each, part.space).items()}
        return outputs | values | {f"next_state.{number}": part for number, part in enumerate(state)}


def _names(prefix: str, spaces_tree: Tree) -> Tree:
    """A name for each leaf, in the structure of the tree: the keys on the way to it, with dots between."""
    taken: set[str] = set()

    def name(path: str, tree: Tree) -> Tree:
        if isinstance(tree, dict):
            return {key: name(f"{path}.{key}", part) for key, part in tree.items()}
        if isinstance(tree, tuple):
            return tuple(name(f"{path}.{index}", part) for index, part in enumerate(tree))
        while path in taken:  # keys may hold dots themselves
            path += "_"
        taken.add(path)
        return path

    return name(prefix, spaces_tree)


def _choose(space: gymnasium.Space, keys: Sequence[str] | None) -> gymnasium.Space:
    return spaces.Dict([(key, space[key]) for key in keys]) if keys and isinstance(space, spaces.Dict) else space


def _critic_sees_no_more(config: Config, observed: Any) -> bool:
    return config.actor_keys is None or set(config.critic_keys or observed) <= set(config.actor_keys)


def prepared(preprocess: Preprocess, obs: Tree) -> Tree:
    """What `preprocess` makes of those keys that are there."""
    if isinstance(preprocess, Branches) and not preprocess.as_tuple:
        parts = dict(zip(preprocess.keys, preprocess.parts, strict=True))
        return {key: prepared(parts[key], value) for key, value in obs.items()}
    return preprocess(obs)


def _leaves(preprocess: Preprocess, tree: Tree) -> Iterator[Preprocess]:
    """What is done to each leaf of the tree, in its order."""
    if not isinstance(preprocess, Branches):
        yield preprocess
        return
    parts = dict(zip(preprocess.keys, preprocess.parts, strict=True))
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _leaves(parts[key], part)


def parameters(law: Distribution, space: gymnasium.Space) -> dict[str, Tensor]:
    """What describes a distribution, by name. Those of a Box have its shape; of choices, one row has those of all entries."""
    match law:
        case Categorical():
            return {"logits": law.log_probs}
        case MultiCategorical():
            return {"logits": torch.cat([part.log_probs for part in law.parts], -1)}
        case Bernoulli():
            return {"logits": law.logits}
        case Gaussian():
            rows = {"mean": law.mean, "log_std": law.log_std.expand_as(law.mean)}
        case Beta():
            rows = {"alpha": law.alpha, "beta": law.beta}
        case _:
            raise NotImplementedError(f"{type(law).__name__} has no parameters to show")
    return {name: row.reshape(row.shape[0], *(space.shape or ())) for name, row in rows.items()}
