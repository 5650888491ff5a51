"""The settings as keyword arguments of `proxrl.train`: their types for editors and type checkers, and their help texts.

A type checker reads source code, so the fields of `Config` are written out here once more; a test compares the two.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from proxrl.config.config import Config
from proxrl.config.flags import describe_default
from proxrl.config.other_names import unknown_setting
from proxrl.config.schedule import Schedule
from proxrl.errors import ProxRLError

# What a coefficient may be: a number, a schedule as text, or a function of (step, planned_steps) at the top level of a module.
Coefficient: TypeAlias = float | str | Schedule | Callable[[int, int], float]
# A callable at the top level of a module, or its name as module:callable.
Plugin: TypeAlias = str | Callable[..., Any]
# A callable, or several, each alone or with its keyword arguments: as words, or as a dict after it.
Calls: TypeAlias = Plugin | Sequence[Plugin | dict[str, Any] | tuple[Plugin, dict[str, Any]]]

Function = TypeVar("Function", bound=Callable[..., Any])


class Settings(TypedDict, total=False):
    """Every field of `Config` but `env`, with the types that are accepted for it. None and "off" turn a setting off."""

    # environment
    env_kwargs: dict[str, Any]
    num_envs: int
    vector: Literal["auto", "inprocess", "native", "workers", "envpool"]
    num_workers: int | None
    max_episode_steps: int | None
    wrapper: Calls | None
    action_repeat: int | None
    frame_stack: int | None
    resets: Literal["soft", "hard"]
    action_mask: str

    # Atari games
    noop_max: int
    frame_skip: int
    max_pool: bool
    episodic_life: bool
    fire_reset: bool
    grayscale: bool
    screen_size: int
    sign_rewards: bool
    sticky_actions: float
    full_action_space: bool

    # algorithm
    total_steps: int
    rollout_steps: int
    num_minibatches: int
    epochs: int
    value_epochs: int | None
    gamma: Coefficient
    gae_lambda: Coefficient
    entropy_coef: Coefficient
    value_coef: Coefficient
    advantage_norm: Literal["minibatch", "batch", "off"]
    clip_bootstrap: float | None
    learning_starts: int

    # trust region
    clip: Coefficient | None
    value_clip: Coefficient | None
    target_kl: Coefficient | None
    kl_coef: Coefficient
    adaptive_kl: float | None

    # optimizer
    learning_rate: Coefficient
    anneal_learning_rate: bool
    adaptive_learning_rate: float | None
    value_learning_rate: Coefficient | None
    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"]
    value_optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] | None
    weight_decay: Coefficient
    adam_epsilon: float
    momentum: float
    max_grad_norm: Coefficient | None
    accumulate: int

    # normalization
    normalize_observations: bool
    clip_observations: float | None
    reward_scale: float
    normalize_rewards: bool
    clip_rewards: float | None

    # networks
    hidden_sizes: tuple[int, ...] | list[int]
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"]
    trunk: Literal["auto", "separate", "shared"]
    encoder: Plugin | None
    image_channels: Literal["auto", "first", "last"]
    encoder_kwargs: dict[str, Any]
    policy: Plugin | None
    policy_kwargs: dict[str, Any]
    value: Plugin | None
    value_kwargs: dict[str, Any]
    actor_keys: tuple[str, ...] | list[str] | None
    critic_keys: tuple[str, ...] | list[str] | None

    memory: Literal["lstm", "gru", "transformer"] | None
    memory_size: int
    memory_layers: int
    memory_heads: int
    memory_window: int
    sequence_length: int | None
    freeze: tuple[str, ...] | list[str] | None

    # continuous actions
    action_distribution: Literal["clip", "tanh", "beta"]
    std: Literal["independent", "state", "fixed"]
    log_std_init: float
    noise: Literal["gsde"] | None
    noise_interval: int | None
    rpo_alpha: float | None

    # bonuses and learners
    bonus: Calls | None
    icm_coef: Coefficient
    rnd_coef: Coefficient
    rnd_gamma: Coefficient
    learner: Calls | None
    advantage: Calls | None
    # run
    name: str
    seed: int
    init_from: str | Path | None
    init_checkpoint: str
    eval_every: int | None
    eval_episodes: int
    eval_env: Plugin | None
    eval_env_kwargs: dict[str, Any]
    stop_at: float | None
    stop_at_success: float | None
    stop_plateau: int | None
    plateau_tolerance: float
    save_every: int | None
    capture_video: int | None
    log_info: tuple[str, ...] | list[str] | None
    callback: Plugin | None
    callback_kwargs: dict[str, Any]
    logger: Plugin | None
    logger_kwargs: dict[str, Any]

    # machine
    engine: Literal["torch"]
    world: Literal["auto", "solo", "mpi", "torch"]
    device: str
    device_ids: tuple[int, ...] | list[int] | None
    compute: Literal["auto", "autograd", "numpy"]
    precision: Literal["float32", "bfloat16"]
    compile: bool
    threads: int | None
    torch_deterministic: bool


def with_settings(function: Function) -> Function:
    """Replace `**settings` in a function's signature by all settings, and list them in its docstring.

    Completion in IPython and Jupyter reads the signature, and `help` shows both.
    """
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    # An ellipsis instead of the default, which the preset of the environment may replace.
    listed = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=...) for name in Settings.__annotations__]
    function.__signature__ = signature.replace(parameters=[*given, *listed])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{settings_help()}"
    return function


def settings_help() -> str:
    """Return all settings with their help texts and defaults, which presets refine."""
    lines = ["Settings, with the defaults that hold unless the environment's preset has another value:"]
    group = None
    for spec in dataclasses.fields(Config):
        if spec.name == "env":
            continue
        if spec.metadata["group"] != group:
            group = spec.metadata["group"]
            lines += ["", f"{group}:"]
        text = f"{spec.name}: {spec.metadata['help']}{describe_default(spec.default, spec.metadata['off'])}"
        lines += textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    return "\n".join(lines)


def check_keywords(settings: Collection[str], function: Callable[..., Any]) -> None:
    """Raise an error that suggests another name for a keyword argument that the function does not have."""
    known = list(inspect.signature(function).parameters)
    for name in settings:
        if name not in known:
            raise ProxRLError(unknown_setting(name, known))
