"""Threads, and other settings of the process that hold while a run computes."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.engine.allocator import keep_freed_memory
from proxrl.envs.spaces import space_tree
from proxrl.policy.heads import Head, torch_dtype
from proxrl.policy.policy import Policy
from proxrl.world.api import World

# The numpy engine is faster than autograd up to about this many activations in a layer.
SMALL_LAYER = 2**17

# A thread pays off at about this many multiplications in a forward pass over a minibatch (docs/performance.md).
WORK_PER_THREAD = 2**27

# As many as torch would use by itself.
TORCH_THREADS = torch.get_num_threads()


def is_small(policy: Policy, config: Config) -> bool:
    """Return whether the policy consists of linear and recurrent layers that are small enough for the numpy engine to pay off."""
    layers = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    known = all(isinstance(module, nn.Linear | nn.RNNBase | Head) for module in layers)
    widths = [module.out_features for module in layers if isinstance(module, nn.Linear)]
    widest = max(widths + [module.hidden_size for module in layers if isinstance(module, nn.RNNBase)], default=1)
    return known and config.minibatch_size * widest < SMALL_LAYER


def choose_threads(policy: Policy, config: Config, world: World | None = None) -> int:
    """Return how many threads torch gets: as --threads says, otherwise by the work in a minibatch.

    Other work on the same cores makes threads wait for each other, so a thread must be worth it. The choice depends on settings
    and cores alone, not on measurements: a resumed run must compute the same, and sums depend on the number of threads.
    """
    if config.threads is not None or policy.work_per_row is None:
        return config.threads or 1
    ranks = 1 if world is None else world.size
    cores = TORCH_THREADS if world is None else world.cores if ranks > 1 else min(TORCH_THREADS, world.cores)
    rows = config.minibatch_size / config.accumulate / ranks
    return int(min(cores, max(1, rows * policy.work_per_row // WORK_PER_THREAD)))


def shard_count(policy: Policy, config: Config, world: World | None, sees_features: bool) -> int:
    """Return how many threads of `Shards` share a minibatch: all that `choose_threads` allows, or one if they can't.

    Then torch splits its operations among its own threads instead (see shards.py for what that costs). Rows of a minibatch must
    not depend on each other, as they do in batch normalization; learners that see features need those of all rows in one piece; a
    GPU and torch's compiler have their own ways.
    """
    normalizes = any(isinstance(module, nn.modules.batchnorm._NormBase) for module in policy.modules())
    on_cpu = next(policy.parameters()).device.type == "cpu"
    return 1 if normalizes or sees_features or config.compile or not on_cpu else choose_threads(policy, config, world)


def count_work(policy: Policy, config: Config) -> None:
    """Set `policy.work_per_row` to the multiplications of a forward pass on one observation, if `choose_threads` will need it:
    the counter imports for a second. Called before torch compiles the networks, because compiled ones can't be counted.
    """
    if config.threads is not None or TORCH_THREADS == 1 or is_small(policy, config):
        return
    device = next(policy.parameters()).device
    space = space_tree(policy.preprocess.output_space)
    obs = tree_map(lambda leaf: torch.zeros((1, *leaf.shape), dtype=torch_dtype(leaf.dtype), device=device), space)
    if policy.masked:
        obs["action_mask"] = torch.ones_like(obs["action_mask"], dtype=torch.bool)
    # With gradients enabled, as in an update: without, attention takes a path that is not counted.
    with torch.enable_grad(), FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        policy.core(obs, policy.initial_state(1), None)
    policy.work_per_row = counter.get_total_flops() / 2  # a multiplication and an addition are two operations


def _lstm_operations(inputs: torch.Size, weights: torch.Size, recurrent: torch.Size, *_: Any, **__: Any) -> int:
    """Return the operations of an LSTM layer of oneDNN, from the shapes of its arguments."""
    return 2 * math.prod(inputs[:-1]) * (math.prod(weights) + math.prod(recurrent))


# Operations that torch's counter does not know. It sees the single products of a GRU.
UNCOUNTED = {torch.ops.aten.mkldnn_rnn_layer: _lstm_operations}


@contextmanager
def arithmetic(config: Config, policy: Policy | None = None, world: World | None = None, shards: int = 1) -> Iterator[None]:
    """Set threads and floating-point warnings while a run computes; without a policy, while it is being built. torch gets one
    thread if there are several `shards`.

    numpy's OpenBLAS gets one thread: its threads spin while they wait for each other, which makes a small network 20 times slower
    as soon as another process needs a core. There are no warnings about exp(large): infinity is right in tanh, and in a loss it
    is found and reported.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1 if shards > 1 else config.threads or 1 if policy is None else choose_threads(policy, config, world))
    if policy is not None and not is_small(policy, config):
        keep_freed_memory()
    # Not called without need: torch imports its compiler for it, which takes seconds.
    changes_determinism = config.torch_deterministic and not deterministic
    if changes_determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's matrix products need it
        torch.use_deterministic_algorithms(True)
    try:
        with threadpool_limits(1, user_api="blas"), np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        torch.set_num_threads(before)
        if changes_determinism:
            torch.use_deterministic_algorithms(False)


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16. In torch this is a private function; a test notices if it goes."""
    return bool(torch.cpu._is_avx512_bf16_supported())
