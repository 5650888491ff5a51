"""Settings → parts: builds everything that a run needs.

Each kind of part chooses among its own classes: environments in envs/registry.py, networks and heads in policy/, optimizers in
engine/optimizers.py. What is chosen here is where a run computes: its world, its device, and the class that does the arithmetic.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from proxrl.bonus.api import LearnerSetup, state_tensors
from proxrl.bonus.calling import term_names
from proxrl.bonus.estimator import load_estimator
from proxrl.bonus.registry import build_learners, learning_parameters
from proxrl.collect.collector import Collector
from proxrl.collect.minibatches import Minibatches
from proxrl.collect.perturbation import Perturbation
from proxrl.collect.rewards import RewardScaler
from proxrl.config import Config
from proxrl.config.wrappers import load_wrapping
from proxrl.engine.adaptive import AdaptiveCoefficients
from proxrl.engine.api import Compute
from proxrl.engine.autograd import TorchCompute
from proxrl.engine.descent import GradientDescent
from proxrl.engine.flat import FlatParameters
from proxrl.engine.memory import refuse_too_large
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.engine.numpy_recurrent import NumpyRecurrentCompute
from proxrl.engine.optimizers import Optimizer
from proxrl.engine.shards import Shards
from proxrl.engine.threads import count_work, cpu_has_bfloat16, is_small, shard_count
from proxrl.envs.api import Environments
from proxrl.envs.atari import AtariOptions
from proxrl.envs.registry import ATARI, find_family, make_environments
from proxrl.envs.stacking import stack_frames, stack_size
from proxrl.errors import CollectiveError, ProxRLError
from proxrl.log.activity import Activity
from proxrl.policy.freezing import freeze
from proxrl.policy.networks import add_value_streams, make_policy
from proxrl.policy.policy import Policy
from proxrl.ppo import Parts, gae
from proxrl.session import Trainee
from proxrl.world.api import World, this_location
from proxrl.world.launcher import Launch, launched, set_rendezvous_from_slurm
from proxrl.world.mpi import MpiWorld
from proxrl.world.solo import Solo
from proxrl.world.torchdist import TorchWorld


def build(config: Config, env: str | Callable[..., Any], world: World | None = None) -> Parts:
    """Build everything that this rank needs to train; `env` is `config.env`, or the callable that it names."""
    world = world or Solo()
    device = build_device(config.device, config.device_ids, world)
    envs = rank_envs(config.num_envs, world)
    refuse_too_large(config, len(envs), world.local_size)
    environments = build_environments(config, env, len(envs), envs.start, world)
    try:
        refuse_too_large(config, len(envs), world.local_size, environments)
        return assemble(config, environments, world, device, envs.start)
    except BaseException:
        environments.close()
        raise


def assemble(config: Config, environments: Environments, world: World, device: torch.device, first_env: int = 0) -> Parts:
    """Build the parts around a pool of environments."""
    observation_space, action_space = environments.observation_space, environments.action_space
    policy = make_policy(config, observation_space, action_space).to(device)
    counts = environments.num_envs, first_env, environments.frame_stack
    setup = LearnerSetup(config, observation_space, action_space, policy, world, *counts)
    learners = build_learners(setup, device)
    add_value_streams(policy, 1 + sum(learner.column > 0 for learner in learners), config.seed)
    freeze(policy, config)
    policy_group, value_group = policy.groups()
    learning = learning_parameters(learners, policy_group + value_group)
    parameters = FlatParameters((policy_group + learning, value_group), len(term_names(learners)))
    compute = build_compute(config, policy, parameters, any(learner.sees_features for learner in learners), world)
    optimizer = Optimizer(parameters, config.optimizers, config.adam_epsilon, config.momentum)
    activity = Activity()
    keeps_final_obs = any(learner.sees_final_obs for learner in learners)
    collector = Collector(environments, compute, policy, world, config, first_env, activity, keeps_final_obs)
    collector.record_info(config.log_info or ())
    perturbation = Perturbation(config.rpo_alpha, policy.head.means, policy.head.inputs)
    return Parts(
        config=config,
        world=world,
        environments=environments,
        first_env=first_env,
        policy=policy,
        parameters=parameters,
        compute=compute,
        optimizer=optimizer,
        descent=GradientDescent(compute, parameters, optimizer, world, config.accumulate, learners),
        adaptive=AdaptiveCoefficients(config.adaptive_kl, config.adaptive_learning_rate),
        reward_scaler=RewardScaler(environments.num_envs, config.normalize_rewards, config.clip_rewards, config.reward_scale),
        collector=collector,
        minibatches=Minibatches(config, compute, world, first_env, activity, perturbation),
        estimator=load_estimator(config.advantage, gae, compute.array),
        learners=learners,
        activity=activity,
    )


def trainee(parts: Parts) -> Trainee:
    """Return what a session saves and restores of these parts."""
    modules = {"policy": parts.policy, "rewards": parts.reward_scaler, "steering": parts.adaptive}  # names in checkpoints

    def tensors() -> dict[str, torch.Tensor]:
        states = {
            f"{prefix}.{name}": tensor for prefix, module in modules.items() for name, tensor in module.state_dict().items()
        }
        return states | state_tensors(parts.learners) | parts.optimizer.tensors()

    def restore(_: dict[str, torch.Tensor]) -> None:
        """Nothing is left to do: the tensors are the parts' own."""

    environments = parts.environments
    spaces = environments.observation_space, environments.action_space
    return Trainee(tensors, restore, *spaces, parts, parts.activity, environments.info_names)


def rank_envs(num_envs: int, world: World) -> range:
    """Return the numbers of this rank's environments among those of all ranks."""
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
    """Build a pool of `num_envs` of the run's environment: evaluation uses another number than training."""
    cores, kwargs = (world or Solo()).cores, config.env_kwargs
    if config.vector == "envpool" and find_family(config.env) is not ATARI:
        kwargs = {"num_threads": min(cores, num_envs)} | kwargs  # otherwise it uses all cores, also those of other ranks and runs
    pool = make_environments(
        env,
        kwargs,
        num_envs,
        config.vector,
        config.num_workers or cores,
        first_env,
        max_episode_steps=config.max_episode_steps,
        action_mask=config.action_mask,
        atari=atari_options(config),
        wrapping=load_wrapping(config),
    )
    return stack_frames(pool, stack_size(config.env, config.frame_stack), config.image_channels)


def atari_options(config: Config) -> AtariOptions:
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(AtariOptions)}
    return AtariOptions(**options | {"frame_stack": config.frame_stack or AtariOptions.frame_stack})


def build_world(config: Config, cores: int | None = None) -> World:
    """Connect to the ranks that the launcher started together with this one; without a launcher, this rank is alone, and `cores`
    limits how many it uses.
    """
    launch = launched()
    kind = launch.kind if config.world == "auto" else config.world
    if kind == "solo":
        return Solo(cores)
    if launch.size == 1:
        starter = "mpirun -n 2" if kind == "mpi" else "torchrun --nproc-per-node 2 -m"
        raise CollectiveError(f"--world {kind}, but no launcher has started several ranks; use {starter} proxrl train ...")
    if kind == "mpi" and launch.launcher == "torchrun":
        raise CollectiveError("--world mpi, but torchrun started this; use mpirun, or leave --world out")
    if kind == "torch" and launch.kind == "mpi" and launch.launcher != "srun":
        raise CollectiveError(f"--world torch, but {launch.launcher} started this; use torchrun or srun, or leave --world out")
    world = join_world(kind, launch, uses_nccl(config))
    if world.size != launch.size:
        # Otherwise each process would train a run of its own, in the folder of the others.
        raise ProxRLError(
            f"{launch.launcher} started {launch.size} ranks, but MPI reports {world.size}: it is not the MPI library"
            " that mpi4py loads; use that library's mpirun, srun --mpi=pmix, or --world torch with srun or torchrun"
        )
    return world


def refuse_shared_gpus(world: World, device: torch.device, nccl: bool) -> None:
    """Raise an error that names the GPU; NCCL would fail without giving a reason."""
    # Slurm may give each rank a GPU of its own, and all of them the same name.
    places = world.gather((this_location().host, str(device), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if world.kind == "torch" and nccl and len(set(places)) < len(places):
        host, name, _ = next(place for place in places if places.count(place) > 1)
        raise CollectiveError(
            f"several ranks would use {name} of {host}; start fewer there, or let them share it: --device-ids 0 0"
        )


def uses_nccl(config: Config) -> bool:
    """NCCL can't put two ranks on one GPU; gloo can."""
    return config.device.startswith("cuda") and len(set(config.device_ids or ())) == len(config.device_ids or ())


@functools.cache
def join_world(kind: str, launch: Launch, nccl: bool) -> World:
    """Connect once per process: a program that trains several times keeps its ranks."""
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
    """Return the GPU of this rank: the one with its number among the ranks of the host, or the one that `ids` lists there."""
    if ids is not None:
        if len(ids) < world.local_size:
            raise ProxRLError(f"--device-ids names {len(ids)} GPUs for {world.local_size} ranks on a host; name one for each")
        return ids[world.local_rank]
    # If Slurm makes only its own GPU visible to each rank, its index is 0.
    return world.local_rank if world.local_size > 1 and visible > 1 else None


def build_compute(
    config: Config, policy: Policy, parameters: FlatParameters, sees_features: bool = False, world: World | None = None
) -> Compute:
    """Choose how the policy's arithmetic is done; by autograd if a learner needs the policy's features or a part is frozen."""
    count_work(policy, config)
    numpy_compute = NumpyRecurrentCompute if policy.recurrent else NumpyCompute
    possible = numpy_compute.supports(policy) and parameters.values.device.type == "cpu" and config.accumulate == 1
    possible = possible and config.precision == "float32" and not config.compile and not sees_features
    possible = possible and all(parameter.requires_grad for parameter in policy.parameters())
    if config.compute == "numpy" and not possible:
        raise ProxRLError(
            "--compute numpy is for separate MLPs with tanh or relu, alone or with an LSTM or GRU, Discrete or clipped Gaussian"
            " actions, --device cpu, --accumulate 1, none of --precision, --compile and --freeze, and no learner that sees"
            " features; use --compute autograd"
        )
    if config.compute == "numpy" or (config.compute == "auto" and possible and is_small(policy, config)):
        return numpy_compute(policy, parameters)
    check_precision(config.precision, parameters.values.device)
    shards = Shards(shard_count(policy, config, world, sees_features))
    return TorchCompute(policy, parameters, config.precision, config.compile, shards)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse bfloat16 on processors without the instructions for it, where it is several times slower than single precision."""
    if precision == "bfloat16" and device.type == "cpu" and not cpu_has_bfloat16():
        raise ProxRLError("--precision bfloat16: this CPU has no instructions for it and would be far slower; leave it out")
    if precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ProxRLError("--precision bfloat16: this GPU does not have it; leave it out")
