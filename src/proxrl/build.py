"""Config → objects. Every "which class?" is answered here and nowhere else."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from proxrl.allocator import keep_freed_memory
from proxrl.collect.normalize import RewardScaler
from proxrl.collect.rollout import Collector
from proxrl.config import Config
from proxrl.envs.api import Environments
from proxrl.envs.atari import AtariOptions
from proxrl.envs.registry import make_environments
from proxrl.errors import ProxRLError
from proxrl.policy.compute import Compute, TorchCompute
from proxrl.policy.flat import FlatParameters
from proxrl.policy.heads import Head
from proxrl.policy.networks import make_policy
from proxrl.policy.optimizers import Optimizer
from proxrl.policy.policy import Policy
from proxrl.policy.small import NumpyCompute
from proxrl.steering import Steering
from proxrl.types import Terms
from proxrl.world.api import World
from proxrl.world.solo import Solo

# The loss terms that ranks share along with the gradient.
CARRIED = len(Terms._fields)

# Launchers announce the number of ranks in these variables: Open MPI, MPICH and Intel MPI, torchrun, srun.
RANK_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS")

# One thread is fastest up to about this many activations in a layer; beyond it a second one starts to pay.
SMALL_LAYER = 2**17

# As many as torch would use by itself.
TORCH_THREADS = torch.get_num_threads()


@dataclass
class Parts:
    """What `ppo.train` runs on."""

    config: Config
    world: World
    environments: Environments
    first_env: int  # number of this rank's first environment among those of all ranks
    policy: Policy
    parameters: FlatParameters
    compute: Compute
    optimizer: Optimizer
    steering: Steering
    reward_scaler: RewardScaler
    collector: Collector


def build(config: Config, env: str | Callable[..., Any]) -> Parts:
    """Everything that training needs; `env` is `config.env`, or the callable it stands for."""
    world = build_world(config)
    device = build_device(config.device)
    environments = build_environments(config, env, config.num_envs)
    try:
        return assemble(config, environments, world, device)
    except BaseException:
        environments.close()
        raise


def assemble(config: Config, environments: Environments, world: World, device: torch.device, first_env: int = 0) -> Parts:
    """The parts around a pool of environments."""
    policy = make_policy(config, environments.observation_space, environments.action_space).to(device)
    parameters = FlatParameters(policy.groups(), CARRIED)
    compute = build_compute(config, policy, parameters)
    return Parts(
        config=config,
        world=world,
        environments=environments,
        first_env=first_env,
        policy=policy,
        parameters=parameters,
        compute=compute,
        optimizer=Optimizer(parameters, config.optimizers, config.adam_epsilon, config.momentum),
        steering=Steering(config.adaptive_kl, config.adaptive_learning_rate),
        reward_scaler=RewardScaler(environments.num_envs, config.normalize_rewards, config.clip_rewards, config.reward_scale),
        collector=Collector(environments, compute, policy, config.rollout_steps, config.resets == "hard"),
    )


def build_environments(config: Config, env: str | Callable[..., Any], num_envs: int) -> Environments:
    """As many as asked for of the run's environment: evaluation wants another number than training."""
    return make_environments(
        env,
        config.env_kwargs,
        num_envs,
        config.vector,
        config.num_workers,
        max_episode_steps=config.max_episode_steps,
        action_mask=config.action_mask,
        atari=AtariOptions(**{field.name: getattr(config, field.name) for field in dataclasses.fields(AtariOptions)}),
    )


def build_world(config: Config) -> World:
    """One rank. A launcher of several must not start that many runs that overwrite each other."""
    counts = [os.environ.get(name, "") for name in RANK_COUNTS]
    ranks = max(int(count) if count.isdigit() else 1 for count in counts)
    if ranks > 1 and config.world == "auto":
        raise ProxRLError(
            f"started as {ranks} ranks, but this version trains with one: use --num-envs for more environments,"
            " or --world solo with a --seed or --name per rank to train independent runs"
        )
    return Solo()


def build_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ProxRLError(f"--device {name} can't be used here ({reason}); --device cpu always works") from None
    return device


def is_small(policy: Policy, config: Config) -> bool:
    """Whether the layers are too small for threads to pay."""
    layers = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    known = all(isinstance(module, nn.Linear | Head) for module in layers)
    widest = max((module.out_features for module in layers if isinstance(module, nn.Linear)), default=1)
    return known and config.minibatch_size * widest < SMALL_LAYER


@contextmanager
def arithmetic(config: Config, policy: Policy | None = None) -> Iterator[None]:
    """Settings of the arithmetic while a run lasts, or while its policy is still to be built.

    Threads for torch where layers are large, but one for numpy's OpenBLAS: its threads spin while they wait for each other,
    which makes a small network 20 times slower as soon as another process wants a core. No warnings for exp(large): infinity
    is the right answer in tanh, and in a loss it is found and reported.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    small = policy is None or is_small(policy, config)
    torch.set_num_threads(config.threads or (1 if small else TORCH_THREADS))
    if not small:
        keep_freed_memory()
    if config.torch_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it CUDA's matrix products refuse
        torch.use_deterministic_algorithms(True)
    try:
        with threadpool_limits(1, user_api="blas"), np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(deterministic)


def build_compute(config: Config, policy: Policy, parameters: FlatParameters) -> Compute:
    possible = NumpyCompute.supports(policy) and parameters.values.device.type == "cpu" and config.accumulate == 1
    possible = possible and config.precision == "float32" and not config.compile
    if config.compute == "numpy" and not possible:
        raise ProxRLError(
            "--compute numpy is for separate MLPs with tanh or relu, Discrete or clipped Gaussian actions, --device cpu,"
            " --accumulate 1 and neither --precision nor --compile; use --compute autograd"
        )
    if config.compute == "numpy" or (config.compute == "auto" and possible and is_small(policy, config)):
        return NumpyCompute(policy, parameters)
    check_precision(config.precision, parameters.values.device)
    return TorchCompute(policy, parameters, config.precision, config.compile)


def check_precision(precision: str, device: torch.device) -> None:
    """bfloat16 without the instructions for it is several times slower than single precision."""
    if precision == "bfloat16" and device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        raise ProxRLError("--precision bfloat16: this CPU has no instructions for it and would be far slower; leave it out")
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ProxRLError("--precision bfloat16: this GPU does not have it; leave it out")
