"""Threads, and other settings of the process that hold while a run computes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from proxrl.config import Config
from proxrl.engine.allocator import keep_freed_memory
from proxrl.policy.heads import Head
from proxrl.policy.policy import Policy
from proxrl.world.api import World

# One thread is fastest up to about this many activations in a layer; beyond it a second one starts to pay.
SMALL_LAYER = 2**17

# As many as torch would use by itself.
TORCH_THREADS = torch.get_num_threads()


def is_small(policy: Policy, config: Config) -> bool:
    """Return whether the layers are too small for threads to pay."""
    layers = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    known = all(isinstance(module, nn.Linear | Head) for module in layers)
    widest = max((module.out_features for module in layers if isinstance(module, nn.Linear)), default=1)
    return known and config.minibatch_size * widest < SMALL_LAYER


@contextmanager
def arithmetic(config: Config, policy: Policy | None = None, world: World | None = None) -> Iterator[None]:
    """Set threads and floating-point warnings while a run computes; without a policy, while it is being built.

    torch gets several threads where layers are large. numpy's OpenBLAS gets one: its threads spin while they wait for each other,
    which makes a small network 20 times slower as soon as another process needs a core. There are no warnings about exp(large):
    infinity is right in tanh, and in a loss it is found and reported.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    small = policy is None or is_small(policy, config)
    most = TORCH_THREADS if world is None or world.size == 1 else world.cores
    torch.set_num_threads(config.threads or (1 if small else most))
    if not small:
        keep_freed_memory()
    if config.torch_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # CUDA's matrix products need it
        torch.use_deterministic_algorithms(True)
    try:
        with threadpool_limits(1, user_api="blas"), np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU has instructions for bfloat16. In torch this is a private function; a test notices if it goes."""
    return bool(torch.cpu._is_avx512_bf16_supported())
