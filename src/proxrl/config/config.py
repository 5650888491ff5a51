"""What a run is: one flat, read-only dataclass. Flags, presets and `config.toml` all use these field names.

Off is `None`, written `off` on the command line and in files.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from proxrl.config.schedule import Scalar, Schedule, value_at
from proxrl.errors import ProxRLError

OFF = "off"

# Changing these while resuming changes how long a run goes on or where it computes, not what it is.
CHANGEABLE_ON_RESUME = frozenset(
    {"total_steps", "num_workers", "eval_every", "eval_episodes", "save_every", "capture_video"}
    | {"logger", "logger_kwargs", "world", "device", "device_ids", "threads"}
)

Optimiser: TypeAlias = Literal["adam", "adamw", "sgd", "rmsprop"]


def _option(
    default: Any,
    group: str,
    text: str,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    imported: bool = False,
) -> Any:
    """A setting; `imported` ones name a callable, `module:callable`, and from Python may be given as the callable itself."""
    metadata = {"group": group, "help": text, "above": above, "least": least, "most": most, "imported": imported}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


ENVIRONMENT, ATARI, PPO, TRUST, OPTIMISER = "environment", "Atari games", "algorithm", "how far an update may go", "optimiser"
NORMALISE, NETWORK, ACTION, RUN, MACHINE = "normalisation", "networks", "continuous actions", "run", "machine"


class Phase(NamedTuple):
    """Some epochs of an update, and what learns in them."""

    epochs: int
    policy: bool
    value: bool


@dataclass(frozen=True)
class Coefficients:
    """The scalars of the algorithm, each of which may follow a schedule, at one moment of a run."""

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


@dataclass(frozen=True)
class Config:
    """Every setting of a run. The defaults suit small vector tasks; presets refine them by environment family."""

    env: str = field(default="CartPole-v1", metadata={"group": "", "help": "Gymnasium id, EnvPool id, or module:callable"})

    # What the agent acts in.
    env_kwargs: dict[str, Any] = _option({}, ENVIRONMENT, "arguments for the environment, as key=value")
    num_envs: int = _option(4, ENVIRONMENT, "environments stepped together, those of all ranks", least=1)
    vector: Literal["auto", "inprocess", "native", "workers", "envpool"] = _option(
        "auto", ENVIRONMENT, "where they run: this process, Gymnasium's vectorised class, worker processes, EnvPool"
    )
    num_workers: int | None = _option(None, ENVIRONMENT, "worker processes of a rank; off is one per core", least=1)
    max_episode_steps: int | None = _option(None, ENVIRONMENT, "truncate episodes after so many steps", least=1)
    resets: Literal["soft", "hard"] = _option("soft", ENVIRONMENT, "a rollout goes on where the last one stopped, or resets all")
    action_mask: str = _option("auto", ENVIRONMENT, "where masks of allowed actions are: info, a key of the observation, or off")

    # Atari games.
    noop_max: int = _option(30, ATARI, "most idle frames at the start of a game", least=0)
    frame_skip: int = _option(4, ATARI, "frames that an action is held for", least=1)
    max_pool: bool = _option(True, ATARI, "of the last two frames take the brighter pixels")
    episodic_life: bool = _option(True, ATARI, "a lost life ends an episode, though not the game")
    fire_reset: bool = _option(True, ATARI, "fire to begin, where nothing moves without")
    grayscale: bool = _option(True, ATARI, "no colours")
    screen_size: int = _option(84, ATARI, "pixels each way", least=8)
    frame_stack: int = _option(4, ATARI, "frames in an observation", least=1)
    sign_rewards: bool = _option(True, ATARI, "learn from the sign of rewards; returns are reported as they are")
    sticky_actions: float = _option(0.0, ATARI, "probability that a frame repeats the last action", least=0, most=1)
    full_action_space: bool = _option(False, ATARI, "all 18 actions, also where a game ignores some")

    # The algorithm.
    total_steps: int = _option(500_000, PPO, "agent steps to train for", least=1)
    rollout_steps: int = _option(128, PPO, "steps of each environment per iteration", least=1)
    num_minibatches: int = _option(4, PPO, "minibatches per epoch", least=1)
    epochs: int = _option(4, PPO, "passes over each batch", least=1)
    value_epochs: int | None = _option(
        None, PPO, "passes for the value alone, after the policy's; off learns both together", least=1
    )
    gamma: Scalar = _option(0.99, PPO, "discount", least=0, most=1)
    gae_lambda: Scalar = _option(0.95, PPO, "trace decay of the advantage estimate", least=0, most=1)
    entropy_coef: Scalar = _option(0.01, PPO, "weight of the entropy bonus", least=0)
    value_coef: Scalar = _option(0.5, PPO, "weight of half the squared value error", least=0)
    advantage_norm: Literal["minibatch", "batch", "off"] = _option("minibatch", PPO, "over what advantages are normalised")
    clip_bootstrap: float | None = _option(
        None, PPO, "limit of the value that stands for what a time-out or a rollout's end cuts off", above=0
    )
    learning_starts: int = _option(0, PPO, "steps at the start that only feed the normalising statistics", least=0)

    # How far an update may go.
    clip: Scalar | None = _option(0.2, TRUST, "clip range of the probability ratio, or off", above=0)
    value_clip: Scalar | None = _option(0.2, TRUST, "clip range of the value update, in scaled rewards, or off", above=0)
    target_kl: Scalar | None = _option(None, TRUST, "stop an update whose KL divergence passes this", above=0)
    kl_coef: Scalar = _option(0.0, TRUST, "weight of a penalty on the KL divergence from the policy that acted", least=0)
    adaptive_kl: float | None = _option(None, TRUST, "KL divergence that --kl-coef is steered towards", above=0)

    # The optimiser.
    learning_rate: Scalar = _option(2.5e-4, OPTIMISER, "step size", above=0)
    anneal_learning_rate: bool = _option(True, OPTIMISER, "let a plain step size fall linearly to zero over the run")
    adaptive_learning_rate: float | None = _option(
        None, OPTIMISER, "KL divergence per iteration that the step size is steered towards", above=0
    )
    value_learning_rate: Scalar | None = _option(None, OPTIMISER, "step size of the value network; off: the policy's", above=0)
    optimizer: Optimiser = _option("adam", OPTIMISER, "rule of the steps")
    value_optimizer: Optimiser | None = _option(None, OPTIMISER, "rule for the value network; off: the policy's")
    weight_decay: Scalar = _option(0.0, OPTIMISER, "pull of the weights towards zero; decoupled in adamw", least=0)
    adam_epsilon: float = _option(1e-5, OPTIMISER, "epsilon of adam, adamw and rmsprop", above=0)
    momentum: float = _option(0.9, OPTIMISER, "momentum of sgd", least=0, most=1)
    max_grad_norm: Scalar | None = _option(0.5, OPTIMISER, "limit of the gradient's global norm, or off", above=0)
    accumulate: int = _option(1, OPTIMISER, "pieces in which a minibatch is computed, to save memory", least=1)

    # Normalisation.
    normalize_observations: bool = _option(False, NORMALISE, "whiten observations by running statistics")
    clip_observations: float | None = _option(10.0, NORMALISE, "limit of whitened observations, or off", above=0)
    reward_scale: float = _option(1.0, NORMALISE, "factor on all rewards, before what follows", above=0)
    normalize_rewards: bool = _option(False, NORMALISE, "divide rewards by the deviation of the discounted return")
    clip_rewards: float | None = _option(None, NORMALISE, "limit of (scaled) rewards", above=0)

    # The networks.
    hidden_sizes: tuple[int, ...] = _option((64, 64), NETWORK, "widths of the hidden layers", least=1)
    activation: Literal["tanh", "relu", "elu", "gelu", "silu"] = _option("tanh", NETWORK, "between layers")
    trunk: Literal["auto", "separate", "shared"] = _option(
        "auto", NETWORK, "whether policy and value have an encoder each; auto shares it for images"
    )
    encoder: str | None = _option(
        None, NETWORK, "mlp, nature, impala, small, or yours, module:callable; off goes by the observation", imported=True
    )
    image_channels: Literal["auto", "first", "last"] = _option(
        "auto", NETWORK, "axis of images that holds the channels; auto takes the smaller one of first and last"
    )
    encoder_kwargs: dict[str, Any] = _option({}, NETWORK, "arguments for it")
    policy: str | None = _option(None, NETWORK, "your whole policy network, module:callable", imported=True)
    policy_kwargs: dict[str, Any] = _option({}, NETWORK, "arguments for it")
    value: str | None = _option(None, NETWORK, "your whole value network, module:callable", imported=True)
    value_kwargs: dict[str, Any] = _option({}, NETWORK, "arguments for it")
    actor_keys: tuple[str, ...] | None = _option(None, NETWORK, "keys of a Dict observation that the policy sees; off is all")
    critic_keys: tuple[str, ...] | None = _option(None, NETWORK, "keys that the value sees; off is all")

    # Continuous actions.
    action_distribution: Literal["clip", "tanh", "beta"] = _option(
        "clip", ACTION, "a Gaussian clipped to the bounds, one squashed by tanh, or a Beta distribution"
    )
    std: Literal["independent", "state", "fixed"] = _option(
        "independent", ACTION, "the Gaussian's deviation: learnt as one number, by state, or never"
    )
    log_std_init: float = _option(0.0, ACTION, "initial log deviation", least=-10, most=2)

    # The run.
    name: str = _option("ppo", RUN, "name of the run: runs/<env>/<name>/seed<seed>")
    seed: int = _option(1, RUN, "fixes everything random", least=0, most=2**63 - 1)
    eval_every: int | None = _option(None, RUN, "evaluate every so many steps", least=1)
    eval_episodes: int = _option(10, RUN, "episodes per evaluation during training", least=1)
    save_every: int | None = _option(None, RUN, "keep a checkpoint every so many steps; off keeps latest and best only", least=1)
    capture_video: int | None = _option(None, RUN, "record an episode every so many iterations, in videos/", least=1)
    callback: str | None = _option(None, RUN, "your callback, module:callable", imported=True)
    callback_kwargs: dict[str, Any] = _option({}, RUN, "arguments for it")
    logger: str | None = _option(None, RUN, "your logger, module:callable", imported=True)
    logger_kwargs: dict[str, Any] = _option({}, RUN, "arguments for it")

    # The machine.
    engine: Literal["torch"] = _option("torch", MACHINE, "what computes")
    world: Literal["auto", "solo", "mpi", "torch"] = _option(
        "auto", MACHINE, "ranks that train together, by MPI or torch.distributed; auto goes by the launcher"
    )
    device: str = _option("cpu", MACHINE, "torch device: cpu, cuda, cuda:1, mps; of several ranks, each takes its own cuda")
    device_ids: tuple[int, ...] | None = _option(None, MACHINE, "GPU of each rank on a host, such as 0 0 1 1", least=0)
    compute: Literal["auto", "autograd", "numpy"] = _option(
        "auto", MACHINE, "how gradients are made: torch autograd, or by hand in numpy (small MLPs on a CPU)"
    )
    precision: Literal["float32", "bfloat16"] = _option("float32", MACHINE, "of the networks' arithmetic, where autograd does it")
    compile: bool = _option(False, MACHINE, "let torch compile the networks: a minute at the start, then maybe faster")
    threads: int | None = _option(None, MACHINE, "torch threads of a rank; off is what measured best", least=1)
    torch_deterministic: bool = _option(False, MACHINE, "refuse torch operations that differ from run to run (some on GPUs)")

    @property
    def batch_size(self) -> int:
        """Rows that all environments collect in one iteration."""
        return self.num_envs * self.rollout_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def iterations(self) -> int:
        return math.ceil(self.total_steps / self.batch_size)

    @property
    def planned_steps(self) -> int:
        """The budget rounded up to whole iterations: what the run announces, and where it ends."""
        return self.iterations * self.batch_size

    def at(self, step: int) -> Coefficients:
        """The coefficients that hold from this step on (core detail 4: by default the learning rate falls linearly to zero)."""
        values = {
            spec.name: value_at(getattr(self, spec.name), step, self.planned_steps) for spec in dataclasses.fields(Coefficients)
        }
        steered = self.adaptive_learning_rate is not None
        for name in ("learning_rate", "value_learning_rate"):
            rate = getattr(self, name)
            if self.anneal_learning_rate and not steered and isinstance(rate, float):
                values[name] = rate * (1 - step / self.planned_steps)
        for name, value in values.items():
            _check_range(f"{flag(name)} at step {step:,}", value, _closed(self.__dataclass_fields__[name].metadata))
        return Coefficients(**values)  # type: ignore[arg-type]  # None only where the field may be None

    def phases(self, step: int) -> list[Phase]:
        """What the update after this step consists of: nothing before learning starts."""
        if step < self.learning_starts:
            return []
        if self.value_epochs is None:
            return [Phase(self.epochs, policy=True, value=True)]
        return [Phase(self.epochs, policy=True, value=False), Phase(self.value_epochs, policy=False, value=True)]

    @property
    def optimizers(self) -> list[str]:
        """One rule for all weights, or one for the policy's and one for the value's."""
        separate = self.value_epochs, self.value_learning_rate, self.value_optimizer
        return [self.optimizer] if separate == (None, None, None) else [self.optimizer, self.value_optimizer or self.optimizer]

    @property
    def scheduled(self) -> list[str]:
        """The coefficients that change over the run."""
        names = [spec.name for spec in dataclasses.fields(Coefficients)]
        changing = {"learning_rate"} | ({"kl_coef"} if self.adaptive_kl is not None else set())
        changing |= {"value_learning_rate"} if self.value_learning_rate is not None else set()
        return [name for name in names if name in changing or isinstance(getattr(self, name), Schedule)]

    def replace(self, **changes: Any) -> "Config":
        return dataclasses.replace(self, **changes)

    def validate(self) -> "Config":
        """Refuse settings that can't work, in one line that says what would."""
        self.check_ranges()
        if self.batch_size < 2:
            raise ProxRLError("a batch of one step has no deviation to normalise by; use more --num-envs or --rollout-steps")
        if self.batch_size % self.num_minibatches:
            pairs = [(n, self.batch_size // n) for n in range(1, math.isqrt(self.batch_size) + 1) if self.batch_size % n == 0]
            fits = {n for pair in pairs for n in pair} - {self.batch_size}
            nearest = sorted(fits, key=lambda n: abs(n - self.num_minibatches))[:3]
            raise ProxRLError(
                f"--num-minibatches {self.num_minibatches} does not divide the batch of {self.batch_size} steps"
                f" (--num-envs {self.num_envs} x --rollout-steps {self.rollout_steps});"
                f" use {' or '.join(map(str, sorted(nearest)))}"
            )
        if self.minibatch_size < 2:
            raise ProxRLError(
                f"a minibatch of one step has no deviation to normalise by: --num-minibatches {self.num_minibatches} must be"
                f" at most half of the batch of {self.batch_size} steps"
            )
        self._check_combinations()
        self.at(0)  # a schedule of your own that fails should fail here
        if not self.name or any(sign in self.name for sign in "/\\:") or self.name.startswith("."):
            raise ProxRLError(f"--name {self.name!r} can't be a folder name; use letters, digits, '-' and '_'")
        for name in (spec.name for spec in dataclasses.fields(self) if get_origin(field_types()[spec.name]) is dict):
            for key, value in getattr(self, name).items():
                if not _fits_toml(value):
                    raise ProxRLError(
                        f"{flag(name)} {key}={value!r} can't be kept in config.toml, which holds text, numbers, booleans,"
                        " lists and tables; leave it out, or set it in a callable of your own"
                    )
        return self

    def check_ranges(self) -> None:
        """Refuse settings that can't work whatever the others are."""
        for spec in dataclasses.fields(self):
            _check_range(flag(spec.name), getattr(self, spec.name), spec.metadata)
            _check_choice(flag(spec.name), getattr(self, spec.name), field_types()[spec.name])

    def _check_combinations(self) -> None:
        """Refuse settings that exclude each other, and settings that nothing would read."""
        if self.accumulate > 1 and self.minibatch_size % self.accumulate:
            fits = [count for count in range(2, self.minibatch_size + 1) if self.minibatch_size % count == 0]
            nearest = min(fits, key=lambda count: abs(count - self.accumulate))
            raise ProxRLError(
                f"--accumulate {self.accumulate} does not divide the minibatch of {self.minibatch_size} steps; use {nearest}"
            )
        if self.learning_starts >= self.planned_steps:
            raise ProxRLError(
                f"--learning-starts {self.learning_starts} leaves nothing of {self.planned_steps} steps to learn in; use fewer"
            )
        if self.trunk == "shared":
            for name in ("policy", "value", "value_epochs", "value_learning_rate", "value_optimizer", "critic_keys"):
                if getattr(self, name) is not None:
                    raise ProxRLError(f"{flag(name)} needs a value network of its own: use --trunk separate")
        if self.encoder is not None and self.policy is not None and self.value is not None:
            raise ProxRLError("--encoder has no place beside both --policy and --value, which are whole; leave it out")
        for name in ("encoder", "policy", "value", "callback", "logger"):
            if getattr(self, f"{name}_kwargs") and getattr(self, name) is None:
                raise ProxRLError(f"{flag(name)}-kwargs are arguments for {flag(name)}, which is not given")
        if self.device_ids is not None and self.device != "cuda":
            raise ProxRLError("--device-ids are numbers of GPUs: use --device cuda with them, or leave them out")
        if self.action_distribution == "beta" and self.std != "independent":
            raise ProxRLError(f"--std {self.std} is for Gaussians, and a Beta distribution has no deviation to set; leave it out")
        for name in ("adaptive_kl", "adaptive_learning_rate"):
            # The KL divergence is measured before each step: of a single one there is none to see, and the answer would run away.
            if getattr(self, name) is not None and self.epochs * self.num_minibatches == 1:
                raise ProxRLError(f"{flag(name)} needs several steps per update to see a KL divergence; use more --epochs")
        if self.adaptive_kl is not None and self.kl_coef == 0:
            raise ProxRLError("--adaptive-kl scales --kl-coef up and down, which must not begin at 0; use --kl-coef 1, for one")


def flag(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


@functools.cache  # asked for hundreds of times per config, at milliseconds each
def field_types() -> Mapping[str, Any]:
    return MappingProxyType(get_type_hints(Config))


def _check_range(label: str, value: Any, metadata: Any) -> None:
    if isinstance(value, Schedule):
        # A schedule may end at the very bound, as a learning rate that falls to zero does.
        value, metadata = value.ends, _closed(metadata)
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        above, least, most = metadata.get("above"), metadata.get("least"), metadata.get("most")
        too_low = (above is not None and not number > above) or (least is not None and not number >= least)
        if too_low or (most is not None and not number <= most) or not math.isfinite(number):
            bounds = [f"greater than {above}"] if above is not None else []
            bounds += [f"at least {least}"] if least is not None else []
            bounds += [f"at most {most}"] if most is not None else []
            raise ProxRLError(f"{label} is {number}, but must be {' and '.join(bounds) or 'a finite number'}")


def _closed(metadata: Any) -> dict[str, Any]:
    """The same range with its lower bound included."""
    least = metadata["least"] if metadata["above"] is None else metadata["above"]
    return {**metadata, "above": None, "least": least}


def _check_choice(label: str, value: Any, kind: Any) -> None:
    allowed = choices_of(kind)
    if allowed and value is not None and value not in allowed:
        raise ProxRLError(f"{label} is {value!r}, but must be one of {', '.join(allowed)}")


def choices_of(kind: Any) -> tuple[str, ...]:
    """The words that a field takes, `off` among them where it may be None; empty where it takes others too."""
    literals = [option for option in (kind, *get_args(kind)) if get_origin(option) is Literal]
    words = get_args(literals[0]) if literals else ()
    return (*words, OFF) if words and type(None) in get_args(kind) else words


def _fits_toml(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _fits_toml(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_fits_toml, value))
    return isinstance(value, str | int | float)
