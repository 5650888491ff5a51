"""The cheapest part of `proxrl check`, which `train` runs before it begins: a moment of random play in one more environment."""

import itertools
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from proxrl.check.checked_env import CheckedEnv, StopCheck, Transition
from proxrl.check.checker import check_spaces
from proxrl.check.episodes import PlayedEpisode, check_endings
from proxrl.check.findings import CheckReport, Finding
from proxrl.config.parse import as_words
from proxrl.envs.api import Environments
from proxrl.envs.leaves import named_leaves
from proxrl.envs.registry import CUSTOM, OTHER, EnvName, find_family

PLAY_SECONDS, PLAY_STEPS, PLAY_EPISODES = 0.3, 400, 5
SHORT_STEPS = 100  # at least, if the time allows: a few short episodes may be equally long by chance


def warnings_about(environments: Environments, env: EnvName, name: str, env_kwargs: dict[str, Any]) -> list[str]:
    """Return what random play finds wrong with a user's environment, a line for each finding; empty if there is nothing to say.

    `name` is that of the environment in config.toml. What stops training is not among them: the pool reports it with the number
    of the environment.
    """
    probe = getattr(environments, "probe", None)
    if probe is None or find_family(env) not in (CUSTOM, OTHER):
        return []
    findings: list[Finding] = probe(look_over) or []
    serious = [finding for finding in findings if finding.level == "warning" or finding.code == "ending-type"]
    lines = [f"warning: {finding.what} [{finding.code}]; to fix it, {finding.fix}" for finding in serious]
    return [*lines, f"{check_command(name, env_kwargs)} tells the effects and finds more"] if lines else []


def check_command(name: str, env_kwargs: dict[str, Any]) -> str:
    """Return how to check the environment of this name; only its own program can find a script's or a nameless one."""
    if name.startswith("__main__:") or "<" in name:
        return "proxrl.check.check(env) from Python"
    return shlex.join(["proxrl", "check", name, *(["--env-kwargs", *as_words(env_kwargs)] if env_kwargs else [])])


def look_over(env: gymnasium.Env) -> Sequence[Finding]:
    """Play random actions for a moment, and return what is wrong. Random numbers that others draw stay the same."""
    report = CheckReport("")
    checked = CheckedEnv(lambda: env, report, debug=False)
    with _same_random_numbers(env):
        try:
            check_spaces(checked, report)
            check_endings(list(_play(checked)), report)
        except StopCheck:
            pass
    return report.findings


def _play(checked: CheckedEnv) -> Iterator[PlayedEpisode]:
    """Yield the episodes that random actions finish within the limits of time and steps."""
    actions = deepcopy(checked.env.action_space)  # environments of one class may share the original
    actions.seed(0)
    deadline, steps = time.monotonic() + PLAY_SECONDS, 0
    for episode in itertools.count():
        if episode >= PLAY_EPISODES and steps >= SHORT_STEPS:
            return
        transition, length, total = Transition(checked.reset(episode), 0.0, False, False), 0, 0.0
        while not transition.ended:
            if steps >= PLAY_STEPS or time.monotonic() > deadline:
                return
            transition = checked.step(actions.sample())
            length, steps, total = length + 1, steps + 1, total + transition.reward
        yield PlayedEpisode(length, total, transition)


@contextmanager
def _same_random_numbers(env: gymnasium.Env) -> Iterator[None]:
    """Restore the generators that several environments may share: the global ones, and those of spaces of their class."""
    states = random.getstate(), np.random.get_state()
    shared = [
        space for space in (getattr(env, "action_space", None), getattr(env, "observation_space", None)) if space is not None
    ]
    generators = [leaf.np_random.bit_generator for space in shared for _, leaf in named_leaves(space)]
    generator_states = [generator.state for generator in generators]
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        for generator, state in zip(generators, generator_states, strict=True):
            generator.state = state
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(torch_state)
