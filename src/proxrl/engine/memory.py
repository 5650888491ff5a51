"""How much memory a run needs at least, compared with what there is: sizes that can't work are refused before they are tried."""

import itertools
import math
from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium import spaces

from proxrl.common.memory import in_words, usable_memory
from proxrl.common.tree import tree_leaves
from proxrl.config import Config
from proxrl.envs.api import Environments
from proxrl.envs.buffers import stored_dtype
from proxrl.envs.spaces import is_image, space_tree
from proxrl.errors import ProxRLError

# Bytes. All are low, so that nothing is refused that would fit.
STEP_BYTES = 32  # of a step of a rollout, without observation and action: reward, flags, value, advantage, log-probability
ENV_BYTES, WORKER_BYTES = 1024, 30 * 2**20  # of an environment in Python, and of a process that runs some
# Copies of the parameters: weights, gradient, two moments of Adam, and the file that is written.
PARAMETER_BYTES = 4 * 5
# Beyond so many units in all layers, their width is to blame for the memory of the activations.
WIDE = 4096
# The share of the memory available now beyond which a run is worth a warning.
LARGE_SHARE = 0.5


@dataclass(frozen=True)
class MemoryEstimate:
    """What one rank needs, in bytes."""

    rollout: int  # and the activations of a minibatch, if its layers are of usual width
    environments: int
    networks: int  # parameters, and the activations of wide layers
    states: int  # of the policy's memory at the starts of sequences, and the parameters of the memory

    @property
    def total(self) -> int:
        return self.rollout + self.environments + self.networks + self.states

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        return max(("networks", "environments", "states", "rollout"), key=lambda name: getattr(self, name))


def estimate_memory(config: Config, num_envs: int, environments: Environments | None = None) -> MemoryEstimate:
    """Return the least memory that a rank with `num_envs` environments needs; without the pool, observations do not count."""
    rows, inputs, step_bytes = num_envs * config.rollout_steps, 1, STEP_BYTES
    if environments is not None:
        observed, inputs = _observation_bytes(environments.observation_space, environments.frame_stack)
        step_bytes += observed + sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree_leaves(space_tree(environments.action_space))
        )
    pools = config.vector in ("native", "envpool")
    workers = min(config.num_workers or 1, num_envs) if config.vector == "workers" else 0
    share = config.minibatch_size * num_envs // config.num_envs  # of a minibatch, if other ranks have the rest
    parameters, activations = _network_bytes(config, inputs, share // config.accumulate)
    wide = sum(config.hidden_sizes) > WIDE
    return MemoryEstimate(
        rollout=rows * step_bytes + (0 if wide else activations),
        environments=workers * WORKER_BYTES + (0 if pools else num_envs * ENV_BYTES),
        networks=parameters + (activations if wide else 0),
        states=_state_bytes(config, num_envs) + _memory_parameters(config) * PARAMETER_BYTES,
    )


def _observation_bytes(space: gymnasium.Space, frame_stack: int) -> tuple[int, int]:
    """Return the bytes of one observation in a rollout, and the number of inputs that it is for a network."""
    size = inputs = 0
    for leaf in tree_leaves(space_tree(space)):
        stored = math.prod(leaf.shape) * np.dtype(stored_dtype(leaf)).itemsize
        size += stored // frame_stack if is_image(leaf) else stored + 4 * spaces.flatdim(leaf)  # and a copy as floats
        inputs += 0 if is_image(leaf) else spaces.flatdim(leaf)
    return size, inputs


def _network_bytes(config: Config, inputs: int, rows: int) -> tuple[int, int]:
    """Return the bytes of the parameters with their copies, and of the activations of so many rows with their gradients."""
    if config.encoder not in (None, "mlp") or not inputs:
        return 0, 0
    weights = sum((before + 1) * width for before, width in itertools.pairwise([inputs, *config.hidden_sizes]))
    networks = 1 if config.trunk == "shared" or config.policy or config.value else 2
    return networks * weights * PARAMETER_BYTES, networks * rows * sum(config.hidden_sizes) * 4 * 2


def _state_bytes(config: Config, num_envs: int) -> int:
    """Return the bytes of the states that a rollout stores of the policy's memory, twice: as acted and in shuffled order."""
    steps = {None: 0, "lstm": 2, "gru": 1, "transformer": config.memory_window}[config.memory]
    sequences = config.rollout_steps // config.steps_per_sequence + 1
    return num_envs * sequences * config.memory_layers * steps * config.memory_size * 4 * 2


def _memory_parameters(config: Config) -> int:
    """Return the number of the memory's weights, without those of its inputs."""
    matrices = {None: 0, "lstm": 4, "gru": 3, "transformer": 21}[config.memory]
    return config.memory_layers * matrices * config.memory_size**2


def refuse_too_large(config: Config, num_envs: int, ranks: int, environments: Environments | None = None) -> None:
    """Raise an error if the run needs more memory than this host has; `ranks` of them share it."""
    memory, need = usable_memory(), estimate_memory(config, num_envs, environments)
    if memory is not None and need.total * ranks > memory.total:
        raise ProxRLError(
            f"{_needs(config, num_envs, ranks, need)}, but only {in_words(memory.total)} can be used here; {_advice(need)}"
        )


def memory_warning(config: Config, num_envs: int, ranks: int, environments: Environments) -> list[str]:
    """Return a warning if the run needs much of the memory that is available now."""
    memory, need = usable_memory(), estimate_memory(config, num_envs, environments)
    if memory is None or need.total * ranks <= LARGE_SHARE * memory.available:
        return []
    free = f"{in_words(memory.available)} of {in_words(memory.total)} are available now"
    return [f"warning: {_needs(config, num_envs, ranks, need)}, and {free}; if that is too much, {_advice(need)}"]


def _needs(config: Config, num_envs: int, ranks: int, need: MemoryEstimate) -> str:
    if need.largest == "networks":
        what = f"--hidden-sizes {' '.join(map(str, config.hidden_sizes))} (with minibatches of {config.minibatch_size:,})"
    elif need.largest == "states":
        window = f" x --memory-window {config.memory_window:,}" if config.memory == "transformer" else ""
        sequences = config.rollout_steps // config.steps_per_sequence
        starts = f"{sequences:,} sequence{'s' if sequences > 1 else ''} of each of --num-envs {config.num_envs:,}"
        what = f"--memory-size {config.memory_size:,}{window} for {starts}"
    elif need.largest == "environments":
        workers = f" in {min(config.num_workers or 1, num_envs):,} processes" if config.vector == "workers" else ""
        what = f"--num-envs {config.num_envs:,}{workers}"
    else:
        what = f"--num-envs {config.num_envs:,} x --rollout-steps {config.rollout_steps:,}"
    shared = f" for {ranks} ranks" if ranks > 1 else ""
    return f"{what} needs at least {in_words(need.total * ranks)} of memory{shared}"


def _advice(need: MemoryEstimate) -> str:
    return {
        "networks": "use smaller layers or minibatches",
        "environments": "use fewer environments",
        "states": "use a smaller memory, longer sequences or fewer environments",
        "rollout": "use fewer environments or shorter rollouts",
    }[need.largest]
