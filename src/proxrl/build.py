"""Config → objects. Every "which class?" is answered here and nowhere else."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from proxrl.collect.collector import Collector
from proxrl.collect.rewards import RewardScaler
from proxrl.config import Config
from proxrl.engine.adaptive import Steering
from proxrl.engine.allocator import keep_freed_memory
from proxrl.engine.api import Compute
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.flat import FlatParameters
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.engine.optimizers import Optimizer
from proxrl.envs.api import Environments
from proxrl.envs.atari import AtariOptions
from proxrl.envs.registry import make_environments
from proxrl.errors import CollectiveError, ProxRLError
from proxrl.policy.heads import Head
from proxrl.policy.networks import make_policy
from proxrl.policy.policy import Policy
from proxrl.types import Terms
from proxrl.world.api import World, this_location
from proxrl.world.launcher import Launch, launched, set_rendezvous_from_slurm
from proxrl.world.mpi import MpiWorld
from proxrl.world.solo import Solo
from proxrl.world.torchdist import TorchWorld

# The loss terms that ranks share along with the gradient.
CARRIED = len(Terms._fields)

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


def build(config: Config, env: str | Callable[..., Any], world: World | None = None) -> Parts:
    """Everything that this rank's part of the training needs; `env` is `config.env`, or the callable it stands for."""
    world = world or Solo()
    device = build_device(config.device, config.device_ids, world)
    envs = rank_envs(config.num_envs, world)
    environments = build_environments(config, env, len(envs), envs.start, world)
    try:
        return assemble(config, environments, world, device, envs.start)
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
        collector=Collector(environments, compute, policy, world, config.rollout_steps, first_env, config.resets == "hard"),
    )


def rank_envs(num_envs: int, world: World) -> range:
    """Which of all environments are this rank's."""
    each, rest = divmod(num_envs, world.size)
    if rest:
        fits = [count for count in (each * world.size, (each + 1) * world.size) if count]
        raise CollectiveError(
            f"--num-envs {num_envs} can't be shared equally by {world.size} ranks; use {' or '.join(map(str, fits))},"
            " or --envs-per-rank"
        )
    return range(world.rank * each, (world.rank + 1) * each)


def build_environments(
    config: Config, env: str | Callable[..., Any], num_envs: int, first_env: int = 0, world: World | None = None
) -> Environments:
    """As many as asked for of the run's environment: evaluation wants another number than training."""
    return make_environments(
        env,
        config.env_kwargs,
        num_envs,
        config.vector,
        config.num_workers or (world or Solo()).cores,
        first_env,
        max_episode_steps=config.max_episode_steps,
        action_mask=config.action_mask,
        atari=atari_options(config),
    )


def atari_options(config: Config) -> AtariOptions:
    return AtariOptions(**{field.name: getattr(config, field.name) for field in dataclasses.fields(AtariOptions)})


def build_world(config: Config) -> World:
    """The ranks that the launcher started together with this one, or this one alone."""
    launch = launched()
    kind = launch.kind if config.world == "auto" else config.world
    if kind == "solo":
        return Solo()
    if launch.size == 1:
        starter = "mpirun -n 2" if kind == "mpi" else "torchrun --nproc-per-node 2 -m"
        raise CollectiveError(f"--world {kind}, but no launcher has started several ranks; use {starter} proxrl train ...")
    if kind == "mpi" and launch.launcher == "torchrun":
        raise CollectiveError("--world mpi, but torchrun started this; use mpirun, or leave --world out")
    if kind == "torch" and launch.kind == "mpi" and launch.launcher != "srun":
        raise CollectiveError(f"--world torch, but {launch.launcher} started this; use torchrun or srun, or leave --world out")
    world = join_world(kind, launch, uses_nccl(config))
    if world.size != launch.size:
        # Each process would train a run of its own, in the folder of the others.
        raise ProxRLError(
            f"{launch.launcher} started {launch.size} ranks, but MPI knows of {world.size}: it is not of the library that mpi4py"
            " loads; use that library's mpirun, srun --mpi=pmix, or --world torch with srun or torchrun"
        )
    return world


def refuse_shared_gpus(world: World, device: torch.device, nccl: bool) -> None:
    """Before NCCL does, which only says that it can't go on."""
    # Slurm may show each rank a GPU of its own, and all of them by the same name.
    places = world.gather((this_location().host, str(device), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if world.kind == "torch" and nccl and len(set(places)) < len(places):
        host, name, _ = next(place for place in places if places.count(place) > 1)
        raise CollectiveError(
            f"several ranks would use {name} of {host}; start fewer there, or let them share it: --device-ids 0 0"
        )


def uses_nccl(config: Config) -> bool:
    """Which knows no two ranks on one GPU; gloo does."""
    return config.device.startswith("cuda") and len(set(config.device_ids or ())) == len(config.device_ids or ())


@functools.cache
def join_world(kind: str, launch: Launch, nccl: bool) -> World:
    """Once per process: a program that trains several times stays among the same ranks."""
    if kind == "mpi":
        return MpiWorld()
    if launch.launcher == "srun":
        set_rendezvous_from_slurm(os.environ)
    return TorchWorld(launch.rank, launch.size, nccl)


def build_device(name: str, ids: Sequence[int] | None = None, world: World | None = None) -> torch.device:
    world = world or Solo()
    try:
        device = torch.device(name)
        index = device_index(world, ids, torch.cuda.device_count()) if name == "cuda" else None
        device = device if index is None else torch.device(name, index)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        several = "; --device-ids 0 0 1 1 lets ranks share" if world.local_size > 1 and name.startswith("cuda") else ""
        raise ProxRLError(f"--device {name} can't be used here ({reason}); --device cpu always works{several}") from None
    return device


def device_index(world: World, ids: Sequence[int] | None, visible: int) -> int | None:
    """Of several ranks on a host each takes the GPU of its own number, or the one that `ids` has in its place."""
    if ids is not None:
        if len(ids) < world.local_size:
            raise ProxRLError(f"--device-ids names {len(ids)} GPUs for {world.local_size} ranks on a host; name one for each")
        return ids[world.local_rank]
    # Where Slurm shows each rank only its own, that one is the first.
    return world.local_rank if world.local_size > 1 and visible > 1 else None


def is_small(policy: Policy, config: Config) -> bool:
    """Whether the layers are too small for threads to pay."""
    layers = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    known = all(isinstance(module, nn.Linear | Head) for module in layers)
    widest = max((module.out_features for module in layers if isinstance(module, nn.Linear)), default=1)
    return known and config.minibatch_size * widest < SMALL_LAYER


@contextmanager
def arithmetic(config: Config, policy: Policy | None = None, world: World | None = None) -> Iterator[None]:
    """Settings of the arithmetic while a run lasts, or while its policy is still to be built.

    Threads for torch where layers are large, but one for numpy's OpenBLAS: its threads spin while they wait for each other,
    which makes a small network 20 times slower as soon as another process wants a core. No warnings for exp(large): infinity
    is the right answer in tanh, and in a loss it is found and reported.
    """
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    small = policy is None or is_small(policy, config)
    most = TORCH_THREADS if world is None or world.size == 1 else world.cores
    torch.set_num_threads(config.threads or (1 if small else most))
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
