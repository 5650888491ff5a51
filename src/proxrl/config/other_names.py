"""What other libraries call ProxRL's settings, so that their names get an answer instead of "no such setting".

The facts were read in the sources of Stable-Baselines3 2.x and its RL Zoo, CleanRL's ppo.py, and rl_games 1.6.
"""

import difflib
import functools
from collections.abc import Collection
from typing import Any, NamedTuple, TypeVar

from proxrl.config.fields import flag
from proxrl.errors import ProxRLError

T = TypeVar("T")

SB3, ZOO, CLEANRL, RL_GAMES = "SB3", "RL Zoo", "CleanRL", "rl_games"


class OtherName(NamedTuple):
    """A name that ProxRL does not have."""

    libraries: tuple[str, ...]  # that use it
    ours: str | None  # the setting, or the keyword of `proxrl.train`, that does the same; None if nothing does
    note: str = ""  # how the values differ, or what to do if nothing does the same


_MINIBATCH = "it is the number of minibatches instead of their size: num_minibatches = num_envs * rollout_steps / {}"
_EVERY = "it counts the steps of all environments together, while callbacks of SB3 count those of each"
_WRAPPER = "it is module:callable, and then its arguments as key=value"
_WANDB = "ProxRL takes it from the environment variable {}, as wandb itself does; --wandb turns logging on"

OTHER_NAMES = {
    # the budget and the batch
    "total_timesteps": OtherName((SB3, CLEANRL), "total_steps"),
    "n_timesteps": OtherName((ZOO,), "total_steps"),
    "timesteps": OtherName((), "total_steps"),
    "num_iterations": OtherName((CLEANRL,), "total_steps", "total_steps = iterations * num_envs * rollout_steps"),
    "max_epochs": OtherName((RL_GAMES,), "total_steps", "total_steps = max_epochs * num_envs * rollout_steps"),
    "n_envs": OtherName((SB3, ZOO), "num_envs"),
    "num_actors": OtherName((RL_GAMES,), "num_envs"),
    "n_steps": OtherName((SB3,), "rollout_steps"),
    "num_steps": OtherName((CLEANRL,), "rollout_steps"),
    "horizon_length": OtherName((RL_GAMES,), "rollout_steps"),
    "batch_size": OtherName((SB3,), "num_minibatches", _MINIBATCH.format("batch_size")),
    "minibatch_size": OtherName((RL_GAMES, CLEANRL), "num_minibatches", _MINIBATCH.format("minibatch_size")),
    "n_epochs": OtherName((SB3,), "epochs"),
    "update_epochs": OtherName((CLEANRL,), "epochs"),
    "mini_epochs": OtherName((RL_GAMES,), "epochs"),
    # the loss
    "discount": OtherName((), "gamma"),
    "lam": OtherName((), "gae_lambda"),
    "tau": OtherName((RL_GAMES,), "gae_lambda"),
    "clip_range": OtherName((SB3,), "clip"),
    "clip_coef": OtherName((CLEANRL,), "clip"),
    "e_clip": OtherName((RL_GAMES,), "clip"),
    "clip_range_vf": OtherName(
        (SB3,), "value_clip", "SB3 learns from the clipped error alone, ProxRL (like CleanRL) from the larger of both"
    ),
    "clip_vloss": OtherName(
        (CLEANRL,), "value_clip", "it is a number or off instead of a switch; CleanRL uses that of clip_coef"
    ),
    "clip_value": OtherName((RL_GAMES,), "value_clip", "it is a number or off instead of a switch; rl_games uses that of e_clip"),
    "ent_coef": OtherName((SB3, CLEANRL), "entropy_coef"),
    "vf_coef": OtherName(
        (SB3, CLEANRL),
        "value_coef",
        "the value loss is half the squared error, as in CleanRL; SB3 does not halve it, so its 0.5 is value_coef 1.0",
    ),
    "critic_coef": OtherName((RL_GAMES,), "value_coef", "the value loss is half the squared error in both"),
    "norm_adv": OtherName((CLEANRL,), "advantage_norm", "True is minibatch, False is off"),
    "normalize_advantage": OtherName(
        (SB3, RL_GAMES), "advantage_norm", "True is minibatch in SB3 and batch in rl_games, False is off"
    ),
    "value_bootstrap": OtherName((RL_GAMES,), None, "truncated episodes are always bootstrapped; leave it out"),
    # the optimizer
    "lr": OtherName((), "learning_rate", "a constant one decays to zero, unless anneal_learning_rate is off"),
    "anneal_lr": OtherName((CLEANRL,), "anneal_learning_rate"),
    "lr_schedule": OtherName(
        (RL_GAMES,), "adaptive_learning_rate", "linear is anneal_learning_rate, adaptive is adaptive_learning_rate=KL"
    ),
    "kl_threshold": OtherName((RL_GAMES,), "adaptive_learning_rate", "if lr_schedule is adaptive; otherwise leave it out"),
    "grad_norm": OtherName((RL_GAMES,), "max_grad_norm"),
    "truncate_grads": OtherName((RL_GAMES,), "max_grad_norm", "it is a number or off instead of a switch"),
    "optimizer_class": OtherName((SB3,), "optimizer", "it is a name, such as adam or rmsprop"),
    "optimizer_kwargs": OtherName((SB3,), None, "the arguments are settings: adam_epsilon, weight_decay and momentum"),
    "adam_eps": OtherName((), "adam_epsilon"),
    "mixed_precision": OtherName((RL_GAMES,), "precision", "True is bfloat16"),
    # normalization
    "normalize": OtherName((ZOO,), "normalize_observations", "the Zoo normalizes rewards too: normalize_rewards"),
    "norm_obs": OtherName((SB3,), "normalize_observations"),
    "normalize_input": OtherName((RL_GAMES,), "normalize_observations"),
    "clip_obs": OtherName((SB3,), "clip_observations"),
    "norm_reward": OtherName((SB3,), "normalize_rewards"),
    "clip_reward": OtherName((SB3,), "clip_rewards", "SB3 clips normalized rewards to 10 by default, ProxRL only if told to"),
    "reward_shaper": OtherName((RL_GAMES,), "reward_scale", "it is the number scale_value"),
    "normalize_value": OtherName(
        (RL_GAMES,), None, "values are not normalized; normalize_rewards brings returns to a similar scale"
    ),
    # networks and actions
    "net_arch": OtherName((SB3,), "hidden_sizes", "policy and value have a network of these widths each"),
    "activation_fn": OtherName((SB3,), "activation", "it is a name, such as relu for torch.nn.ReLU"),
    "ortho_init": OtherName((SB3,), None, "MLPs and the Nature CNN are always initialized orthogonally; leave it out"),
    "features_extractor_class": OtherName((SB3,), "encoder", "it is a callable that makes a network from the observation space"),
    "features_extractor_kwargs": OtherName((SB3,), "encoder_kwargs"),
    "share_features_extractor": OtherName((SB3,), "trunk", "True is shared, False is separate"),
    "normalize_images": OtherName((SB3,), None, "images of bytes are always scaled to numbers from 0 to 1; leave it out"),
    "squash_output": OtherName((SB3,), "action_distribution", "True is tanh"),
    "bounds_loss_coef": OtherName(
        (RL_GAMES,), "action_distribution", "instead of a penalty, tanh and beta keep actions within their bounds"
    ),
    "use_sde": OtherName((SB3,), "noise", "True is gsde"),
    "sde_sample_freq": OtherName((SB3,), "noise_interval", "-1 is off: once per rollout"),
    # the environment
    "env_id": OtherName((CLEANRL, SB3), "env", "it is the first argument"),
    "env_name": OtherName((RL_GAMES,), "env", "it is the first argument"),
    "wrapper_class": OtherName((SB3,), "wrapper", _WRAPPER),
    "wrapper_kwargs": OtherName((SB3,), "wrapper", _WRAPPER),
    "env_wrapper": OtherName((ZOO,), "wrapper", _WRAPPER),
    "vec_env": OtherName((ZOO,), "vector", "dummy is inprocess, subproc is workers"),
    "vec_env_cls": OtherName((SB3,), "vector", "DummyVecEnv is inprocess, SubprocVecEnv is workers"),
    # the run
    "exp_name": OtherName((CLEANRL,), "name"),
    "run_name": OtherName((CLEANRL,), "name"),
    "track": OtherName((CLEANRL, ZOO), "wandb"),
    "wandb_project_name": OtherName((CLEANRL, ZOO), None, _WANDB.format("WANDB_PROJECT")),
    "wandb_entity": OtherName((CLEANRL, ZOO), None, _WANDB.format("WANDB_ENTITY")),
    "tensorboard_log": OtherName((SB3,), "runs_dir", "TensorBoard's files are in the run folder, unless tensorboard is off"),
    "log_folder": OtherName((ZOO,), "runs_dir"),
    "verbose": OtherName((SB3, ZOO), "quiet", "verbose=0 is quiet"),
    "progress_bar": OtherName((SB3,), "quiet", "a terminal shows the progress unless quiet is given"),
    "log_interval": OtherName((SB3,), None, "every iteration is logged; leave it out"),
    "stats_window_size": OtherName((SB3,), None, "the training return is always the mean of 100 episodes; leave it out"),
    "reset_num_timesteps": OtherName((SB3,), "clobber", "the same call resumes a run, and clobber starts over"),
    "eval_freq": OtherName((SB3, ZOO), "eval_every", _EVERY),
    "n_eval_episodes": OtherName((SB3,), "eval_episodes"),
    "save_freq": OtherName((SB3, ZOO), "save_every", _EVERY),
    "save_frequency": OtherName((RL_GAMES,), "save_every", "it counts steps instead of epochs"),
    "score_to_win": OtherName((RL_GAMES,), "stop_at"),
    "reward_threshold": OtherName((SB3,), "stop_at"),
    "save_model": OtherName((CLEANRL,), None, "checkpoints are always saved; leave it out"),
    "cuda": OtherName((CLEANRL,), "device", "True is cuda, False is cpu"),
    "num_threads": OtherName((ZOO,), "threads"),
}


def explain(name: str) -> str | None:
    """Return what to use instead of a name of another library, as a clause; None for names that are not known."""
    other = OTHER_NAMES.get(name)
    if other is None:
        return None
    if other.ours is None:
        return other.note
    return f"ProxRL calls it {other.ours} ({flag(other.ours)})" + (f": {other.note}" if other.note else "")


def unknown_setting(name: str, known: Collection[str]) -> str:
    """Return the error message for a setting that does not exist."""
    hint = explain(name)
    if hint is None:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "'proxrl train --help' lists them all"
    return f"there is no setting {name!r}; {hint}"


def suggesting_names(cls: type[T]) -> type[T]:
    """Decorate a dataclass of settings: an unknown keyword argument is an error that suggests the right one."""
    plain, known = cls.__init__, cls.__dataclass_fields__  # type: ignore[attr-defined]

    @functools.wraps(plain)
    def initialize(self: T, *args: Any, **settings: Any) -> None:
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise ProxRLError(unknown_setting(unknown[0], known))
        plain(self, *args, **settings)

    cls.__init__ = initialize  # type: ignore[assignment]
    return cls


def unknown_flag(spelling: str, known: Collection[str], command: str) -> str:
    """Return the error message for a flag that a command does not have; `known` are those that it has."""
    name = spelling.removeprefix("--").replace("-", "_")
    for candidate in (name, name.removeprefix("no_")):
        other = OTHER_NAMES.get(candidate)
        # The name of a setting means something else to a command that takes no settings.
        if other is not None and flag(other.ours or "learning_rate") in known:
            return f"there is no flag {spelling}; {explain(candidate)}"
    nearest = difflib.get_close_matches(spelling, known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"there is no flag {spelling}{hint} ('{command} --help' lists them)"
