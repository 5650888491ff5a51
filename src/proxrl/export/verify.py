"""Verification of an exported file: it is compared with its policy on the same observations.

Policies with a memory are compared over steps that follow each other, with the beginning of an episode among them.
"""

import itertools
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
from proxrl.export.deployed import STATE, Deployed, Input
from proxrl.look.agent import Agent
from proxrl.policy.preprocess import Whiten

Arrays = dict[str, NDArray[Any]]

# Policies are mostly used with batches of one; several sizes detect an export that fixed the number of rows.
BATCHES = (1, 7, 64)
# Steps of a policy with a memory. Before the one with the number RESTART, an episode begins in every other row.
STEPS, RESTART = 16, 9


def largest_difference(agent: Agent, deployed: Deployed, run_file: Callable[[Arrays], Arrays]) -> float:
    """Return the largest difference between the file's outputs and `agent.act`, relative for large numbers.

    For discrete actions that differ, it is the difference of their log-probabilities, which is near zero for a tie.
    """
    rng = np.random.default_rng(0)
    all_differences = itertools.chain.from_iterable(differences(agent, deployed, run_file, rows, rng) for rows in BATCHES)
    return float(np.max(list(all_differences)))  # unlike max(), it returns NaN if there is one


def differences(
    agent: Agent, deployed: Deployed, run_file: Callable[[Arrays], Arrays], rows: int, rng: np.random.Generator
) -> Iterator[float]:
    """Yield the differences of all outputs in one step or, with a memory, in several: then each has the state of its own."""
    agent.reset()
    states: list[Arrays] = [{}, {}]
    for step in range(STEPS if agent.policy.recurrent else 1):
        if step == RESTART:
            begun = np.arange(rows) % 2 == 0
            agent.reset(begun)
            for array in (array for state in states for array in state.values()):
                array[begun] = 0
        inputs = sample_inputs(deployed, agent.action_space, rng, rows)
        outputs = run_file(inputs | states[0])
        with torch.no_grad():
            tensors = deployed(*map(torch.from_numpy, (inputs | states[1]).values()))
        expected = {name: value.numpy() for name, value in tensors.items()}
        states = [next_state(deployed, outputs), next_state(deployed, expected)]
        yield from step_differences(agent, deployed, inputs, outputs, expected)


def next_state(deployed: Deployed, outputs: Arrays) -> Arrays:
    """Return the state of the memory after a step, by the names of the inputs of the next one."""
    names = [one.name for one in deployed.inputs if one.name.startswith(STATE)]
    return {name: outputs[f"next_{name}"].copy() for name in names}


def step_differences(agent: Agent, deployed: Deployed, inputs: Arrays, outputs: Arrays, expected: Arrays) -> Iterator[float]:
    """Yield the difference of each output from the policy's."""
    obs = tree_map(inputs.__getitem__, deployed.names)
    actions = agent.act(obs["observation"], mask=obs[MASK]) if agent.policy.masked else agent.act(obs)
    for part, action in zip(deployed.action_parts, tree_leaves(actions), strict=True):
        name, logits = f"action{part.suffix}", expected.get(f"logits{part.suffix}")
        expected.pop(name)
        yield _distance(outputs[name], action, part.space) if logits is None else _gap(outputs[name], action, logits, part.space)
    for name, value in expected.items():
        yield _distance(outputs[name], value)


def _distance(one: NDArray[Any], other: NDArray[Any], space: gymnasium.Space | None = None) -> float:
    """Return the largest difference, relative to the numbers and to half the width of the space if these exceed 1."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    scale = np.maximum(1, np.abs(second, where=np.isfinite(second), out=np.ones_like(second)))
    if isinstance(space, spaces.Box):
        half_width = space.high.astype(np.float64) / 2 - space.low.astype(np.float64) / 2
        scale = np.maximum(scale, np.where(np.isfinite(half_width), half_width, 1))
    return float(np.max(_absolute_difference(first, second) / scale, initial=0))


def _gap(one: NDArray[Any], other: NDArray[Any], logits: NDArray[np.float32], space: gymnasium.Space) -> float:
    """Return the largest difference of the log-probabilities of choices that differ; for a bit, its log-odds."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if isinstance(space, spaces.MultiBinary):
        return float(np.max(np.abs(logits), initial=0, where=(one != other).reshape(logits.shape)))
    begins = np.cumsum([0, *group_sizes(space)[:-1]])
    columns = [(choice - space.start).reshape(len(choice), -1).astype(np.int64) + begins for choice in (one, other)]  # type: ignore[attr-defined]
    first, second = (np.take_along_axis(logits, column, 1) for column in columns)
    return float(np.max(_absolute_difference(first, second), initial=0))


def _absolute_difference(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return |first - second|, which is 0 for equal infinities and NaN if either is NaN."""
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0, np.abs(first - second))


def sample_inputs(deployed: Deployed, action_space: gymnasium.Space, rng: np.random.Generator, rows: int) -> Arrays:
    """Return random observations of the space, and masks, by the name of the input."""
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
        return np.zeros(size)  # the initial state of a memory
    if isinstance(one.preprocess, Whiten):
        moments = one.preprocess.moments
        values: NDArray[Any] = moments.mean.numpy() + np.sqrt(moments.variance.numpy()) * rng.normal(0, 2, size)
    else:
        values = rng.normal(0, 2, size) if np.issubdtype(space.dtype, np.floating) else rng.integers(-255, 256, size)
    return np.asarray(np.clip(values, space.low, space.high))


def _sample_mask(action_space: gymnasium.Space, rng: np.random.Generator, rows: int) -> NDArray[np.bool_]:
    """Return masks of which some allow few choices, but each allows at least one."""
    sizes = [size for leaf in tree_leaves(space_tree(action_space)) for size in group_sizes(leaf)]
    groups = [rng.random((rows, size)) < rng.random((rows, 1)) for size in sizes]
    for bits in groups:
        bits[np.arange(rows), rng.integers(0, bits.shape[1], rows)] = True
    return np.concatenate(groups, axis=1)
