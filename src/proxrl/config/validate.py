"""Checks of a `Config`. Each raises `ProxRLError` with one line that says what is wrong and what to do."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_origin

from proxrl.config.calls import BUILT_IN, parse_calls
from proxrl.config.fields import choices_of, flag, types_of
from proxrl.config.other_names import explain
from proxrl.config.schedule import Schedule
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from proxrl.config.config import Config


MOST_STEPS, MOST_BATCH = 10**15, 2**40  # far beyond what can be done, so that only slips of the keyboard are refused
# The parts of a policy that --freeze knows (policy/freezing.py).
FREEZABLE = ("encoder", "memory", "head", "policy", "value", "statistics")
MOST_NAME = 200  # bytes; filesystems allow 255, encrypted ones less


def validate(config: "Config") -> None:
    """Raise an error for settings that can't work, alone or together."""
    check_ranges(config)
    check_sizes(config)
    check_batch(config)
    check_schedules(config)
    check_networks(config)
    check_memory(config)
    check_start(config)
    check_arguments(config)
    check_environments(config)
    if config.device_ids is not None and config.device != "cuda":
        raise ProxRLError("--device-ids are numbers of GPUs: use --device cuda with them, or leave them out")
    check_actions(config)
    if not config.name or any(sign in config.name for sign in "/\\:") or config.name.startswith("."):
        raise ProxRLError(f"--name {config.name!r} can't be a folder name; use letters, digits, '-' and '_'")


def check_ranges(config: "Config") -> None:
    """Raise an error for values that are out of range or not among the choices, whatever the other settings are."""
    for spec in dataclasses.fields(config):
        value = getattr(config, spec.name)
        check_range(flag(spec.name), value, spec.metadata)
        choices = choices_of(types_of(type(config))[spec.name])
        if choices and value is not None and value not in choices:
            raise ProxRLError(f"{flag(spec.name)} is {value!r}, but must be one of {', '.join(choices)}")


def check_range(label: str, value: Any, metadata: Mapping[str, Any], closed: bool = False) -> None:
    """Raise an error if a number, or one of several, is outside its range; `closed` includes the lower bound."""
    if isinstance(value, Schedule):
        # A schedule may end at the bound itself, as a learning rate that decays to zero does.
        value, closed = value.ends, True
    above, least, most = metadata.get("above"), metadata.get("least"), metadata.get("most")
    if closed and above is not None:
        above, least = None, above
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        too_low = (above is not None and not number > above) or (least is not None and not number >= least)
        if too_low or (most is not None and not number <= most) or not math.isfinite(number):
            bounds = [f"greater than {above}"] if above is not None else []
            bounds += [f"at least {least}"] if least is not None else []
            bounds += [f"at most {most}"] if most is not None else []
            raise ProxRLError(f"{label} is {number}, but must be {' and '.join(bounds) or 'a finite number'}")


def check_sizes(config: "Config") -> None:
    """Raise an error for sizes that no machine can handle."""
    if config.total_steps > MOST_STEPS:
        years = config.total_steps / 1e6 / (365 * 86400)
        raise ProxRLError(
            f"--total-steps {config.total_steps:,}: a million steps per second would take {years:,.0f} years; use fewer"
        )
    if config.batch_size > MOST_BATCH:
        raise ProxRLError(
            f"--num-envs {config.num_envs:,} x --rollout-steps {config.rollout_steps:,} is a batch of {config.batch_size:,}"
            f" steps, whose rewards alone take {config.batch_size * 4 / 2**30:,.0f} GiB of memory; use fewer"
        )
    check_name(config.name)


def check_name(name: str) -> None:
    """Raise an error for a name that is too long for a folder."""
    if len(name.encode(errors="replace")) > MOST_NAME:
        raise ProxRLError(f"--name has {len(name)} characters, too many for a folder name; use at most {MOST_NAME}")


def divisors(number: int) -> set[int]:
    """Return all divisors of a number."""
    below = [count for count in range(1, math.isqrt(number) + 1) if number % count == 0]
    return {*below, *(number // count for count in below)}


def check_batch(config: "Config") -> None:
    """Raise an error if the batch can't be split into equal minibatches and microbatches of at least two steps."""
    if config.batch_size < 2:
        raise ProxRLError("a batch of one step has no standard deviation to normalize by; use more --num-envs or --rollout-steps")
    if config.batch_size % config.num_minibatches:
        possible = divisors(config.batch_size) - {config.batch_size}
        nearest = sorted(possible, key=lambda count: abs(count - config.num_minibatches))[:3]
        raise ProxRLError(
            f"--num-minibatches {config.num_minibatches} does not divide the batch of {config.batch_size} steps"
            f" (--num-envs {config.num_envs} x --rollout-steps {config.rollout_steps});"
            f" use {' or '.join(map(str, sorted(nearest)))}"
        )
    if config.minibatch_size < 2:
        raise ProxRLError(
            f"a minibatch of one step has no standard deviation to normalize by: --num-minibatches {config.num_minibatches}"
            f" must be at most half of the batch of {config.batch_size} steps"
        )
    if config.accumulate > 1 and config.minibatch_size % config.accumulate:
        nearest_count = min(divisors(config.minibatch_size) - {1}, key=lambda count: abs(count - config.accumulate))
        raise ProxRLError(
            f"--accumulate {config.accumulate} does not divide the minibatch of {config.minibatch_size} steps;"
            f" use {nearest_count}"
        )


def check_schedules(config: "Config") -> None:
    """Raise an error if nothing would be learned, or if a coefficient can't be adapted or computed."""
    if config.learning_starts >= config.planned_steps:
        raise ProxRLError(
            f"--learning-starts {config.learning_starts} leaves none of the {config.planned_steps} steps to learn in; use fewer"
        )
    for name in ("adaptive_kl", "adaptive_learning_rate"):
        # The KL divergence is measured before each optimizer step, so with a single one it is always 0 and the coefficient
        # would grow without limit.
        if getattr(config, name) is not None and config.epochs * config.num_minibatches == 1:
            raise ProxRLError(f"{flag(name)} needs several steps per update to measure a KL divergence; use more --epochs")
    if config.adaptive_kl is not None and config.kl_coef == 0:
        raise ProxRLError("--adaptive-kl multiplies --kl-coef, which must not start at 0; use --kl-coef 1, for example")
    config.at(0)  # a user's schedule function that fails should fail before training


def check_environments(config: "Config") -> None:
    """Raise an error for wrappers that are not given as such, or an evaluation environment that is never used."""
    for name in BUILT_IN:
        parse_calls(name, getattr(config, name))
    given = "--eval-env" if config.eval_env is not None else "--eval-env-kwargs"
    if config.eval_every is None and (config.eval_env is not None or config.eval_env_kwargs):
        raise ProxRLError(f"{given} is for evaluations during training; give --eval-every N too, or use proxrl eval afterwards")


def check_actions(config: "Config") -> None:
    """Raise an error for settings of continuous actions that exclude each other."""
    if config.action_distribution == "beta" and config.std != "independent":
        raise ProxRLError(f"--std {config.std} is for Gaussians; a Beta distribution has no standard deviation, so leave it out")
    if config.action_distribution == "beta" and config.rpo_alpha is not None:
        raise ProxRLError("--rpo-alpha moves the mean of a Gaussian; a Beta distribution has none, so leave it out")
    if config.noise is None:
        return
    if config.action_distribution == "beta":
        raise ProxRLError("--noise gsde is for Gaussians; use --action-distribution clip or tanh, or leave it out")
    if config.std == "state":
        raise ProxRLError("--noise gsde depends on the state already; use --std independent or fixed with it")
    if config.policy is not None:
        raise ProxRLError("--noise gsde needs the features of ProxRL's policy network; use --encoder instead of --policy")


def check_networks(config: "Config") -> None:
    """Raise an error for network settings that exclude each other."""
    if config.trunk == "shared":
        for name in ("policy", "value", "value_epochs", "value_learning_rate", "value_optimizer", "critic_keys"):
            if getattr(config, name) is not None:
                raise ProxRLError(f"{flag(name)} needs a separate value network: use --trunk separate")
    if config.encoder is not None and config.policy is not None and config.value is not None:
        raise ProxRLError("--encoder has no effect beside both --policy and --value, which replace it; leave it out")
    if config.value is not None and any(call.name == "rnd" for call in parse_calls("bonus", config.bonus)):
        raise ProxRLError("--bonus rnd: its own value stream needs ProxRL's value network; leave --value out")


def check_memory(config: "Config") -> None:
    """Raise an error for networks that leave no place for a memory, and for sequences that it can't have."""
    if config.memory is None:
        return
    for name in ("policy", "value"):
        if getattr(config, name) is not None:
            raise ProxRLError(
                f"{flag(name)} replaces the whole network, which leaves no place for --memory; use --encoder instead"
            )
    if config.memory == "transformer" and config.memory_size % config.memory_heads:
        fitting = sorted(divisors(config.memory_size), key=lambda divisor: abs(divisor - config.memory_heads))[:2]
        raise ProxRLError(
            f"--memory-heads {config.memory_heads} does not divide --memory-size {config.memory_size};"
            f" use {' or '.join(map(str, sorted(fitting)))} heads, or another size"
        )
    each = config.batch_size // config.steps_per_sequence // config.num_minibatches
    if config.accumulate > max(1, each):
        raise ProxRLError(
            f"--accumulate {config.accumulate} splits minibatches between sequences, but each has {each} of"
            f" {config.steps_per_sequence} steps; use a shorter --sequence-length, more --num-envs or a smaller --accumulate"
        )
    length = config.sequence_length
    if length is None:
        return
    if config.rollout_steps % length:
        nearest = sorted(divisors(config.rollout_steps), key=lambda divisor: abs(divisor - length))[:2]
        raise ProxRLError(
            f"--sequence-length {length} does not divide --rollout-steps {config.rollout_steps};"
            f" use {' or '.join(map(str, sorted(nearest)))}"
        )
    if config.resets == "hard":
        raise ProxRLError(
            "--sequence-length with --resets hard: a rollout is then a whole episode from its start; leave one of them out"
        )
    sequences = config.batch_size // length
    if sequences < config.num_minibatches:
        raise ProxRLError(
            f"--sequence-length {length} gives {sequences} sequences per batch for --num-minibatches {config.num_minibatches};"
            f" use {config.replace(sequence_length=None).steps_per_sequence}, fewer minibatches or more --num-envs"
        )


def check_start(config: "Config") -> None:
    """Raise an error for names of parts that no policy has, and for a checkpoint of no run."""
    unknown = [part for part in config.freeze or () if part not in FREEZABLE]
    if unknown:
        raise ProxRLError(f"--freeze {unknown[0]}: there is no such part; use {', '.join(FREEZABLE)}")
    if config.init_from is None and config.init_checkpoint != "latest":
        raise ProxRLError("--init-checkpoint names a checkpoint of the run that --init-from names; give that too")


def check_arguments(config: "Config") -> None:
    """Raise an error for keyword arguments that config.toml can't hold, or whose callable is not given."""
    for name in ("encoder", "policy", "value", "callback", "logger"):
        if getattr(config, f"{name}_kwargs") and getattr(config, name) is None:
            hints = [f"; for {key}, {hint}" for key in getattr(config, f"{name}_kwargs") if (hint := explain(key))]
            raise ProxRLError(f"{flag(name)}-kwargs are arguments for {flag(name)}, which is not given{''.join(hints)}")
    if config.encoder_kwargs and ":" not in str(config.encoder) and config.encoder != "split":
        raise ProxRLError(
            f"--encoder {config.encoder} takes no --encoder-kwargs, which are for split and your own encoders; leave them out"
        )
    for name, kind in types_of(type(config)).items():
        for key, value in getattr(config, name).items() if get_origin(kind) is dict else ():
            if not _fits_toml(value):
                raise ProxRLError(
                    f"{flag(name)} {key}={value!r} can't be kept in config.toml, which holds text, numbers, booleans,"
                    " lists and tables; leave it out, or set it in a callable of your own"
                )


def _fits_toml(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _fits_toml(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_fits_toml, value))
    return isinstance(value, str | int | float)
