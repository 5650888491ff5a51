"""Does an exported file do what its policy does? Both are asked about the same observations."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_leaves, tree_map
from proxrl.envs.masks import MASK, group_sizes
from proxrl.envs.spaces import space_tree
from proxrl.export.deployed import Deployed, Input
from proxrl.look.agent import Agent
from proxrl.policy.preprocess import Whiten

Arrays = dict[str, NDArray[Any]]

# A batch of one is how a policy is mostly used, and where an export that has fixed its number of rows shows.
BATCHES = (1, 7, 64)


def largest_difference(agent: Agent, deployed: Deployed, run_file: Callable[[Arrays], Arrays]) -> float:
    """Between what the file answers and what `agent.act` does: over all numbers, relative where they are large.

    For a choice that differs, how much less likely it is: near zero for a tie.
    """
    rng = np.random.default_rng(0)
    found = [
        difference
        for rows in BATCHES
        for inputs in [sample_inputs(deployed, agent.action_space, rng, rows)]
        for difference in differences(agent, deployed, inputs, run_file(inputs))
    ]
    return float(np.max(found))  # Python's own max would pass over a NaN


def differences(agent: Agent, deployed: Deployed, inputs: Arrays, outputs: Arrays) -> Iterator[float]:
    obs = tree_map(inputs.__getitem__, deployed.names)
    agent.reset()
    answer = agent.act(obs["observation"], mask=obs[MASK]) if agent.policy.masked else agent.act(obs)
    with torch.no_grad():
        expected = {name: value.numpy() for name, value in deployed(*map(torch.from_numpy, inputs.values())).items()}
    for part, action in zip(deployed.action_parts, tree_leaves(answer), strict=True):
        name, logits = f"action{part.suffix}", expected.get(f"logits{part.suffix}")
        expected.pop(name)
        yield _distance(outputs[name], action, part.space) if logits is None else _gap(outputs[name], action, logits, part.space)
    for name, value in expected.items():
        yield _distance(outputs[name], value)


def _distance(one: NDArray[Any], other: NDArray[Any], space: gymnasium.Space | None = None) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    scale = np.maximum(1, np.abs(second, where=np.isfinite(second), out=np.ones_like(second)))
    if isinstance(space, spaces.Box):
        reach = space.high.astype(np.float64) / 2 - space.low.astype(np.float64) / 2
        scale = np.maximum(scale, np.where(np.isfinite(reach), reach, 1))
    return float(np.max(_apart(first, second) / scale, initial=0))


def _gap(one: NDArray[Any], other: NDArray[Any], logits: NDArray[np.float32], space: gymnasium.Space) -> float:
    """How far the log-probabilities of differing choices lie apart; for a bit, its log-odds."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if isinstance(space, spaces.MultiBinary):
        return float(np.max(np.abs(logits), initial=0, where=(one != other).reshape(logits.shape)))
    begins = np.cumsum([0, *group_sizes(space)[:-1]])
    columns = [(choice - space.start).reshape(len(choice), -1).astype(np.int64) + begins for choice in (one, other)]  # type: ignore[attr-defined]
    first, second = (np.take_along_axis(logits, column, 1) for column in columns)
    return float(np.max(_apart(first, second), initial=0))


def _apart(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Of infinities that are the same, nothing; of what is not a number, NaN."""
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0, np.abs(first - second))


def sample_inputs(deployed: Deployed, action_space: gymnasium.Space, rng: np.random.Generator, rows: int) -> Arrays:
    """Rows of observations that may occur, by name."""
    return {one.name: _sample(one, action_space, rng, rows).astype(one.dtype) for one in deployed.inputs}


def _sample(one: Input, action_space: gymnasium.Space, rng: np.random.Generator, rows: int) -> NDArray[Any]:
    size, space = (rows, *one.shape), one.space
    if one.name == MASK:
        return _sample_mask(action_space, rng, rows)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        choices: Any = space.n if isinstance(space, spaces.Discrete) else space.nvec
        return np.asarray(np.floor(rng.random(size) * choices) + space.start)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, size)
    if not isinstance(space, spaces.Box):
        return np.zeros(size)  # a memory begins so
    if isinstance(one.preprocess, Whiten):
        moments = one.preprocess.moments
        values: NDArray[Any] = moments.mean.numpy() + np.sqrt(moments.variance.numpy()) * rng.normal(0, 2, size)
    else:
        values = rng.normal(0, 2, size) if np.issubdtype(space.dtype, np.floating) else rng.integers(-255, 256, size)
    return np.asarray(np.clip(values, space.low, space.high))


def _sample_mask(action_space: gymnasium.Space, rng: np.random.Generator, rows: int) -> NDArray[np.bool_]:
    """Some allow little, but none nothing."""
    sizes = [size for leaf in tree_leaves(space_tree(action_space)) for size in group_sizes(leaf)]
    groups = [rng.random((rows, size)) < rng.random((rows, 1)) for size in sizes]
    for bits in groups:
        bits[np.arange(rows), rng.integers(0, bits.shape[1], rows)] = True
    return np.concatenate(groups, axis=1)
