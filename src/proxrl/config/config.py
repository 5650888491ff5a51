"""All settings of a run in one flat, read-only dataclass. Flags, presets and `config.toml` use the names of its fields.

A setting that is off is `None`, written `off` on the command line and in files.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from proxrl.config.fields import flag, setting, types_of
from proxrl.config.other_names import suggesting_names
from proxrl.config.schedule import Scalar, Schedule, value_at
from proxrl.config.validate import check_range, check_ranges, divisors, validate

# These may change when a run is resumed.
CHANGEABLE_ON_RESUME = frozenset(
    {"stop_at", "stop_at_success", "stop_plateau", "plateau_tolerance"}
    | {"total_steps", "num_workers", "eval_every", "eval_episodes", "eval_env", "eval_env_kwargs", "save_every", "capture_video"}
    | {"logger", "logger_kwargs", "log_info", "world", "device", "device_ids", "threads"}
)

OptimizerName: TypeAlias = Literal["adam", "adamw", "sgd", "rmsprop"]

# The headings of `proxrl train --help`.
ENVIRONMENT, ATARI, PPO, TRUST, OPTIMIZER = "environment", "Atari games", "algorithm", "trust region", "optimizer"
NORMALIZATION, NETWORK, ACTION, RUN, MACHINE = "normalization", "networks", "continuous actions", "run", "machine"
BONUS = "bonuses and learners"


class Phase(NamedTuple):
    """A number of epochs of an update, and which networks learn in them."""

    epochs: int
    policy: bool
    value: bool


@dataclass(frozen=True)
class Coefficients:
    """The values of the scheduled settings at one step of a run."""

    learning_rate: float
    value_learning_rate: float | None
    weight_decay: float
    gamma: float
    gae_lambda: float
    clip: float | None
    value_clip: float | None
    entropy_coef: float
    value_coef: float
    kl_coef: float
    max_grad_norm: float | None
    target_kl: float | None
    icm_coef: float
    rnd_coef: float
    rnd_gamma: float


@suggesting_names
@dataclass(frozen=True)
class Config:
    """All settings of a run. The defaults suit small vector tasks; presets refine them by environment family."""

    env: str = field(
        default="CartPole-v1",
        metadata={"group": "", "help": "Gymnasium id, EnvPool id, or module:callable", "off": "", "imported": False},
    )

    env_kwargs: dict[str, Any] = setting({}, ENVIRONMENT, "keyword arguments of the environment")
    num_envs: int = setting(4, ENVIRONMENT, "environments stepped together, summed over all ranks", least=1)
    vector: Literal["auto", "inprocess", "native", "workers", "envpool"] = setting(
        "auto",
        ENVIRONMENT,
        "where environments run: in this process, in the native vectorized class of Gymnasium or ale-py, in worker processes,"
        " or in EnvPool; auto chooses by environment and number",
    )
    num_workers: int | None = setting(None, ENVIRONMENT, "worker processes per rank", off="one per core", least=1)
    max_episode_steps: int | None = setting(
        None, ENVIRONMENT, "truncate episodes after N steps", off="the environment's own limit", least=1
    )
    wrapper: tuple[str, ...] | None = setting(
        None,
        ENVIRONMENT,
        "wrap each environment, innermost wrapper first: module:callable, then its keyword arguments",
        imported=True,
    )
    action_repeat: int | None = setting(
        None, ENVIRONMENT, "repeat each action N times and sum the rewards; for Atari games use --frame-skip", least=1
    )
    frame_stack: int | None = setting(
        None, ENVIRONMENT, "stack the last N observations of an episode", off="4 in Atari games, otherwise none", least=1
    )
    resets: Literal["soft", "hard"] = setting(
        "soft", ENVIRONMENT, "soft: a rollout continues the episodes of the last one; hard: it starts new episodes"
    )
    action_mask: str = setting(
        "auto",
        ENVIRONMENT,
        "where action masks are found: info, a key of the observation, auto (look for them), or off",
        plain=True,
    )

    noop_max: int = setting(30, ATARI, "maximum number of no-op frames at the start of a game", least=0)
    frame_skip: int = setting(4, ATARI, "frames for which an action is repeated", least=1)
    max_pool: bool = setting(True, ATARI, "take the pixel-wise maximum of the last two frames")
    episodic_life: bool = setting(True, ATARI, "end the episode, but not the game, when a life is lost")
    fire_reset: bool = setting(True, ATARI, "press fire at the start of games that wait for it")
    grayscale: bool = setting(True, ATARI, "convert frames to grayscale")
    screen_size: int = setting(84, ATARI, "width and height of a frame in pixels", least=8, most=2048)
    sign_rewards: bool = setting(True, ATARI, "learn from the sign of rewards; reported returns are unchanged")
    sticky_actions: float = setting(0.0, ATARI, "probability that a frame repeats the previous action", least=0, most=1)
    full_action_space: bool = setting(False, ATARI, "all 18 actions, including those that the game ignores")

    total_steps: int = setting(500_000, PPO, "agent steps to train for, rounded up to whole iterations", least=1)
    rollout_steps: int = setting(128, PPO, "steps of each environment per iteration", least=1)
    num_minibatches: int = setting(4, PPO, "minibatches per epoch", least=1)
    epochs: int = setting(4, PPO, "passes over each batch", least=1)
    value_epochs: int | None = setting(
        None, PPO, "train the value function separately, for N passes after the policy's", off="train both together", least=1
    )
    gamma: Scalar = setting(0.99, PPO, "discount factor", least=0, most=1)
    gae_lambda: Scalar = setting(0.95, PPO, "lambda of generalized advantage estimation", least=0, most=1)
    entropy_coef: Scalar = setting(0.01, PPO, "weight of the entropy bonus", least=0)
    value_coef: Scalar = setting(0.5, PPO, "weight of the value loss, which is half the squared error", least=0)
    advantage_norm: Literal["minibatch", "batch", "off"] = setting(
        "minibatch", PPO, "normalize advantages within each minibatch, within the batch, or not at all"
    )
    clip_bootstrap: float | None = setting(
        None, PPO, "limit of the absolute value estimate used at truncations and at the end of a rollout", above=0
    )
    learning_starts: int = setting(0, PPO, "steps before the first update, used for normalization statistics only", least=0)

    clip: Scalar | None = setting(0.2, TRUST, "clip range of the probability ratio, or off", above=0)
    value_clip: Scalar | None = setting(0.2, TRUST, "clip range of the value update, in scaled rewards, or off", above=0)
    target_kl: Scalar | None = setting(None, TRUST, "stop an update early when its KL divergence exceeds this", above=0)
    kl_coef: Scalar = setting(0.0, TRUST, "weight of a penalty on the KL divergence from the policy that acted", least=0)
    adaptive_kl: float | None = setting(None, TRUST, "adapt --kl-coef to reach this KL divergence", above=0)

    learning_rate: Scalar = setting(2.5e-4, OPTIMIZER, "learning rate", above=0)
    anneal_learning_rate: bool = setting(True, OPTIMIZER, "decay a constant learning rate linearly to zero over the run")
    adaptive_learning_rate: float | None = setting(
        None, OPTIMIZER, "adapt the learning rate to reach this KL divergence per iteration", above=0
    )
    value_learning_rate: Scalar | None = setting(
        None, OPTIMIZER, "learning rate of the value network", off="the policy's", above=0
    )
    optimizer: OptimizerName = setting("adam", OPTIMIZER, "optimizer")
    value_optimizer: OptimizerName | None = setting(None, OPTIMIZER, "optimizer of the value network", off="the policy's")
    weight_decay: Scalar = setting(0.0, OPTIMIZER, "weight decay: decoupled in adamw, an L2 penalty otherwise", least=0)
    adam_epsilon: float = setting(1e-5, OPTIMIZER, "epsilon of adam, adamw and rmsprop", above=0)
    momentum: float = setting(0.9, OPTIMIZER, "momentum of sgd", least=0, most=1)
    max_grad_norm: Scalar | None = setting(0.5, OPTIMIZER, "clip the global norm of the gradient to this, or off", above=0)
    accumulate: int = setting(1, OPTIMIZER, "split each minibatch into N microbatches to save memory", least=1)

    normalize_observations: bool = setting(
        False, NORMALIZATION, "normalize observations by their running mean and standard deviation"
    )
    clip_observations: float | None = setting(10.0, NORMALIZATION, "clip normalized observations to +-X, or off", above=0)
    reward_scale: float = setting(1.0, NORMALIZATION, "multiply rewards by this before normalizing and clipping", above=0)
    normalize_rewards: bool = setting(
        False, NORMALIZATION, "divide rewards by the running standard deviation of the discounted return"
    )
    clip_rewards: float | None = setting(None, NORMALIZATION, "clip (scaled and normalized) rewards to +-X", above=0)

    hidden_sizes: tuple[int, ...] = setting((64, 64), NETWORK, "widths of the hidden layers", least=1, most=10**6)
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = setting("tanh", NETWORK, "activation function")
    trunk: Literal["auto", "separate", "shared"] = setting(
        "auto", NETWORK, "whether policy and value share one encoder; auto shares it for images"
    )
    encoder: str | None = setting(
        None,
        NETWORK,
        "mlp, nature, impala, small, split (parts of the observation apart), or a custom encoder as module:callable",
        off="by the observation space",
        imported=True,
    )
    image_channels: Literal["auto", "first", "last"] = setting(
        "auto", NETWORK, "axis of images that holds the channels; auto takes the smaller one of first and last"
    )
    encoder_kwargs: dict[str, Any] = setting({}, NETWORK, "keyword arguments of the encoder")
    policy: str | None = setting(None, NETWORK, "custom policy network as module:callable", imported=True)
    policy_kwargs: dict[str, Any] = setting({}, NETWORK, "keyword arguments of the policy network")
    value: str | None = setting(None, NETWORK, "custom value network as module:callable", imported=True)
    value_kwargs: dict[str, Any] = setting({}, NETWORK, "keyword arguments of the value network")
    actor_keys: tuple[str, ...] | None = setting(
        None, NETWORK, "keys of a Dict observation that the policy sees", off="all", plain=True
    )
    critic_keys: tuple[str, ...] | None = setting(
        None, NETWORK, "keys of a Dict observation that the value sees", off="all", plain=True
    )

    memory: Literal["lstm", "gru", "transformer"] | None = setting(
        None,
        NETWORK,
        "memory between encoder and heads: lstm, gru, transformer or off; Atari games are then single frames",
        off="none",
    )
    memory_size: int = setting(128, NETWORK, "width of a layer of the memory", least=1, most=10**6)
    memory_layers: int = setting(1, NETWORK, "layers of the memory", least=1, most=100)
    memory_heads: int = setting(4, NETWORK, "attention heads of a transformer memory; must divide --memory-size", least=1)
    memory_window: int = setting(64, NETWORK, "steps back that a layer of a transformer memory attends to", least=1, most=10**6)
    sequence_length: int | None = setting(
        None,
        NETWORK,
        "steps through which gradients of the memory flow; must divide --rollout-steps",
        off="the whole rollout, or less if there would be fewer sequences than minibatches",
        least=1,
    )

    freeze: tuple[str, ...] | None = setting(
        None,
        NETWORK,
        "parts that do not learn: encoder, memory, head, policy, value or statistics (of observations); see --init-from",
        off="none",
        plain=True,
    )

    action_distribution: Literal["clip", "tanh", "beta"] = setting(
        "clip", ACTION, "a Gaussian clipped to the bounds, a Gaussian squashed by tanh, or a Beta distribution"
    )
    std: Literal["independent", "state", "fixed"] = setting(
        "independent", ACTION, "standard deviation of the Gaussian: one for all states, a function of the state, or not learned"
    )
    log_std_init: float = setting(0.0, ACTION, "initial log standard deviation", least=-10, most=2)
    noise: Literal["gsde"] | None = setting(
        None,
        ACTION,
        "gsde: generalized state-dependent exploration, whose noise is a function of the state; use --log-std-init -2 with it",
        off="independent in every step",
    )
    noise_interval: int | None = setting(
        None, ACTION, "steps after which --noise gsde is drawn anew", off="once per rollout", least=1
    )
    rpo_alpha: float | None = setting(
        None, ACTION, "in the update, move the means of Gaussians at random by up to +-X (Robust Policy Optimization)", above=0
    )

    bonus: tuple[str, ...] | None = setting(
        None,
        BONUS,
        "add intrinsic rewards: icm, rnd, or a bonus as module:callable, each with its keyword arguments",
        imported=True,
    )
    icm_coef: Scalar = setting(0.01, BONUS, "weight of the reward of icm", least=0)
    rnd_coef: Scalar = setting(0.5, BONUS, "weight of the advantage of rnd, beside the environment's", least=0)
    rnd_gamma: Scalar = setting(0.99, BONUS, "discount factor of the reward of rnd", least=0, most=1)
    learner: tuple[str, ...] | None = setting(
        None, BONUS, "add terms to the loss: learners as module:callable, each with its keyword arguments", imported=True
    )
    advantage: tuple[str, ...] | None = setting(
        None,
        BONUS,
        "replace the advantage estimator: a function as module:callable, then its keyword arguments",
        off="gae",
        imported=True,
    )

    name: str = setting("ppo", RUN, "name of the run, kept in runs/<env>/<name>/seed<seed>", plain=True)
    seed: int = setting(1, RUN, "seed of all random numbers", least=0, most=2**63 - 1)
    init_from: str | None = setting(
        None,
        RUN,
        "start with the weights and statistics of another run: a run folder, or ENV, ENV/NAME or ENV/NAME/seedN",
        off="random weights",
        plain=True,
    )
    init_checkpoint: str = setting("latest", RUN, "its checkpoint: latest, best or step-N", plain=True)
    eval_every: int | None = setting(None, RUN, "evaluate every N steps", least=1)
    eval_episodes: int = setting(10, RUN, "episodes per evaluation during training", least=1)
    eval_env: str | None = setting(
        None, RUN, "environment of the evaluations during training", off="that of training", imported=True
    )
    eval_env_kwargs: dict[str, Any] = setting(
        {}, RUN, "its keyword arguments; without --eval-env, changes to --env-kwargs for evaluations"
    )
    stop_at: float | None = setting(
        None, RUN, "end the run when its return reaches this: of the evaluation with --eval-every, else of the last 100 episodes"
    )
    stop_at_success: float | None = setting(
        None, RUN, "end the run when the success rate of the same episodes reaches this", above=0, most=1
    )
    stop_plateau: int | None = setting(None, RUN, "end the run when the same return has not improved for N steps", least=1)
    plateau_tolerance: float = setting(
        0.01, RUN, "an improvement, for --stop-plateau, is more than this share of what was gained since the start", least=0
    )
    save_every: int | None = setting(None, RUN, "keep a checkpoint every N steps", off="only latest and best", least=1)
    capture_video: int | None = setting(None, RUN, "record an episode every N iterations, in videos/", least=1)
    log_info: tuple[str, ...] | None = setting(
        None, RUN, "log these numbers of the environment's info, such as x_position or reward_terms/forward", plain=True
    )
    callback: str | None = setting(None, RUN, "custom callback as module:callable", imported=True)
    callback_kwargs: dict[str, Any] = setting({}, RUN, "keyword arguments of the callback")
    logger: str | None = setting(None, RUN, "custom logger as module:callable", imported=True)
    logger_kwargs: dict[str, Any] = setting({}, RUN, "keyword arguments of the logger")

    engine: Literal["torch"] = setting("torch", MACHINE, "library that computes; torch is the only engine so far")
    world: Literal["auto", "solo", "mpi", "torch"] = setting(
        "auto", MACHINE, "how ranks train together: not at all, by MPI or by torch.distributed; auto asks the launcher"
    )
    device: str = setting(
        "cpu", MACHINE, "torch device: cpu, cuda, cuda:1 or mps; with cuda, each rank takes its own GPU", plain=True
    )
    device_ids: tuple[int, ...] | None = setting(
        None, MACHINE, "GPU of each rank on a host, such as 0 0 1 1", off="in order", least=0
    )
    compute: Literal["auto", "autograd", "numpy"] = setting(
        "auto", MACHINE, "how gradients are computed: torch autograd, or written out in numpy (small MLPs on a CPU)"
    )
    precision: Literal["float32", "bfloat16"] = setting("float32", MACHINE, "precision of the networks, with autograd")
    compile: bool = setting(False, MACHINE, "compile the networks with torch.compile, which takes a minute at the start")
    threads: int | None = setting(None, MACHINE, "torch threads per rank", off="chosen by network and device", least=1)
    torch_deterministic: bool = setting(
        False, MACHINE, "raise an error for torch operations that are not deterministic (some on GPUs)"
    )

    @property
    def batch_size(self) -> int:
        """Steps that all environments together collect in one iteration."""
        return self.num_envs * self.rollout_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def steps_per_sequence(self) -> int:
        """Steps of one environment that stay together in a minibatch: single ones unless the policy has a memory."""
        if self.memory is None:
            return 1
        lengths = sorted(divisors(self.rollout_steps), reverse=True)
        enough = (length for length in lengths if self.batch_size // length >= self.num_minibatches)
        return self.sequence_length or next(enough, 1)

    @property
    def iterations(self) -> int:
        return math.ceil(self.total_steps / self.batch_size)

    @property
    def planned_steps(self) -> int:
        """The budget rounded up to whole iterations, at which the run ends."""
        return self.iterations * self.batch_size

    def at(self, step: int) -> Coefficients:
        """Return the coefficients from this step on (core detail 4: by default the learning rate decays linearly to zero)."""
        values = {
            spec.name: value_at(getattr(self, spec.name), step, self.planned_steps) for spec in dataclasses.fields(Coefficients)
        }
        adaptive = self.adaptive_learning_rate is not None
        for name in ("learning_rate", "value_learning_rate"):
            rate = getattr(self, name)
            if self.anneal_learning_rate and not adaptive and isinstance(rate, float):
                values[name] = rate * (1 - step / self.planned_steps)
        for name, value in values.items():
            metadata = self.__dataclass_fields__[name].metadata
            check_range(f"{flag(name)} at step {step:,}", value, metadata, closed=True)
        return Coefficients(**values)  # type: ignore[arg-type]  # None only if the field may be None

    def phases(self, step: int) -> list[Phase]:
        """Return the phases of the update after this step: none before learning starts."""
        if step < self.learning_starts:
            return []
        if self.value_epochs is None:
            return [Phase(self.epochs, policy=True, value=True)]
        return [Phase(self.epochs, policy=True, value=False), Phase(self.value_epochs, policy=False, value=True)]

    @property
    def evaluated_in(self) -> str | None:
        """The environment of evaluations during training and its arguments, if it is not that of training."""
        if self.eval_env is None and not self.eval_env_kwargs:
            return None
        kwargs = self.env_kwargs | self.eval_env_kwargs if self.eval_env is None else self.eval_env_kwargs
        return env_label(self.eval_env or self.env, kwargs)

    @property
    def optimizers(self) -> list[str]:
        """The optimizer of all weights, or that of the policy and that of the value network."""
        separate = self.value_epochs, self.value_learning_rate, self.value_optimizer
        return [self.optimizer] if separate == (None, None, None) else [self.optimizer, self.value_optimizer or self.optimizer]

    @property
    def scheduled(self) -> list[str]:
        """The names of the coefficients that change over the run."""
        names = [spec.name for spec in dataclasses.fields(Coefficients)]
        changing = {"learning_rate"} | ({"kl_coef"} if self.adaptive_kl is not None else set())
        changing |= {"value_learning_rate"} if self.value_learning_rate is not None else set()
        return [name for name in names if name in changing or isinstance(getattr(self, name), Schedule)]

    def replace(self, **changes: Any) -> "Config":
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def validate(self) -> "Config":
        """Raise `ProxRLError` for settings that can't work; return the config itself otherwise."""
        validate(self)
        return self

    def check_ranges(self) -> None:
        """Raise `ProxRLError` for settings that can't work whatever the others are."""
        check_ranges(self)


def env_label(env: str, kwargs: Mapping[str, Any]) -> str:
    """Return an environment with its arguments, as messages name it."""
    return f"{env} ({', '.join(f'{key}={value}' for key, value in kwargs.items())})" if kwargs else env


def field_types() -> Mapping[str, Any]:
    """Return the type of each setting."""
    return types_of(Config)
