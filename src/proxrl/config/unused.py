"""Settings that were changed although they have no effect, because what they belong to is not part of the run."""

import dataclasses
from collections.abc import Callable

from proxrl.config.calls import parse_calls
from proxrl.config.config import Config
from proxrl.config.fields import flag
from proxrl.config.parse import as_words


def _has_bonus(name: str) -> Callable[[Config], bool]:
    return lambda config: any(call.name == name for call in parse_calls("bonus", config.bonus))


# Settings, whether a run uses them, and why it does not otherwise.
RULES: tuple[tuple[tuple[str, ...], Callable[[Config], bool], str], ...] = (
    (("icm_coef",), _has_bonus("icm"), "without --bonus icm"),
    (("rnd_coef", "rnd_gamma"), _has_bonus("rnd"), "without --bonus rnd"),
    (
        ("memory_size", "memory_layers", "sequence_length"),
        lambda config: config.memory is not None,
        "without --memory lstm, gru or transformer",
    ),
    (("memory_heads", "memory_window"), lambda config: config.memory == "transformer", "without --memory transformer"),
    (("noise_interval",), lambda config: config.noise is not None, "without --noise gsde"),
    (("log_std_init",), lambda config: config.action_distribution != "beta", "with --action-distribution beta"),
    (("clip_observations",), lambda config: config.normalize_observations, "without --normalize-observations"),
    (("momentum",), lambda config: "sgd" in config.optimizers, "without --optimizer sgd"),
    (("adam_epsilon",), lambda config: set(config.optimizers) != {"sgd"}, "with --optimizer sgd"),
    (("eval_episodes",), lambda config: config.eval_every is not None, "without --eval-every"),
    (("plateau_tolerance",), lambda config: config.stop_plateau is not None, "without --stop-plateau"),
)


def changed_settings(config: Config) -> dict[str, str]:
    """Return the settings that differ from their defaults, by name, with their flag and value as text."""
    changed = [spec.name for spec in dataclasses.fields(Config) if getattr(config, spec.name) != spec.default]
    return {name: " ".join([flag(name), *as_words(getattr(config, name))]) for name in changed}


def reasons_for_no_effect(config: Config) -> dict[str, str]:
    """Return why settings have no effect with these others, by name, whether they were changed or not."""
    return {name: reason for names, is_used, reason in RULES if not is_used(config) for name in names}
