"""`proxrl check`: play an environment at random and say in words what would spoil training on it.

The words are in findings.py, single calls in probe.py, what episodes look like together in episodes.py; here are the experiments.
Every complaint of Gymnasium's own checker is a warning: it guards an interface, and what breaks PPO is an error found here.
"""

import math
import re
import time
import traceback
import warnings
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.utils.env_checker import data_equivalence

from proxrl.check.episodes import Numbers, look_at_endings, look_at_numbers, look_at_rewards
from proxrl.check.findings import BETTER, LEVELS, Report
from proxrl.check.leaves import entry, named_leaves
from proxrl.check.masked_play import Legal
from proxrl.check.probe import Moment, Probe, StopLooking
from proxrl.config import Config
from proxrl.config.presets import load_preset
from proxrl.envs.gymnasium import make_env
from proxrl.envs.registry import EnvName, check_env, choose_vector
from proxrl.envs.spaces import space_tree
from proxrl.errors import ProxRLError, one_line

SLOW_STEP = 1000.0  # microseconds from which handing a step to another process costs little beside it
REPLAY_STEPS, REPLAY_SECONDS, PLAY_SECONDS = 200, 2.0, 20.0  # so that a slow environment does not keep us for ever


def check(
    env: EnvName,
    env_kwargs: dict[str, Any] | None = None,
    episodes: int = 10,
    seed: int = 1,
    limit: int = 10_000,
    debug: bool = False,
) -> Report:
    """All there is to say. The environment is made three times, but never twice at once: a simulator may hold a port."""
    if episodes < 1 or not 0 <= seed < 2**31:
        raise ProxRLError(f"--episodes is {episodes} and must be at least 1; --seed is {seed} and must be from 0 to 2**31 - 1")
    family = check_env(env)
    if isinstance(env, str) and ":" not in env and env not in gymnasium.registry:
        raise ProxRLError(f"only EnvPool has {env}; proxrl check is for environments of Gymnasium and your own")
    kwargs, name = env_kwargs or {}, env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    preset = load_preset(family.preset, name)
    num_envs = preset["num_envs"].value if "num_envs" in preset else Config().num_envs
    vector = choose_vector(env, num_envs, family, kwargs)
    report = Report(name, summary={"preset": family.preset, "num_envs": num_envs, "vector": vector})
    probe = Probe(lambda: make_env(env, kwargs), report, debug)
    try:
        look_at_spaces(probe, report)
        replay(probe, report, seed)
        play(probe, report, seed, episodes, limit)
    except StopLooking:
        pass
    if probe.has_masks and probe.masks.expected:
        report.summary["action_mask"] = probe.masks.place
    probe.reopen()
    for complaint in ask_gymnasium(Legal(probe.env) if probe.has_masks else probe.env):
        better = [codes for part, codes in BETTER if part in complaint]
        if not any(not codes or report.codes & set(codes) for codes in better):
            report.add("gymnasium", f"Gymnasium's checker: {complaint}")
    probe.close()
    report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return report


def ask_gymnasium(env: gymnasium.Env) -> list[str]:
    """Its warnings, and the assertion that stopped it, as plain lines."""
    stopped = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check(env, skip_render_check=True, skip_close_check=True)
        except (Exception, SystemExit) as error:
            raised_in = list(traceback.walk_tb(error.__traceback__))[-1][0].f_globals.get("__name__", "")
            # An assertion of the checker is its verdict; any other exception is the environment's own, or follows from a fault.
            verdict = isinstance(error, AssertionError | gymnasium.error.Error) and raised_in.startswith("gymnasium.utils")
            stopped = [str(error) if verdict else f"stopped by {one_line(error)}"]
    said = [re.sub(r"\x1b\[[\d;]*m", "", str(warning.message)) for warning in caught]
    warned = [line.removeprefix("WARN: ") for line in said if line.startswith("WARN: ")]  # the rest are the environment's own
    return list(dict.fromkeys(" ".join(line.split()) for line in warned + stopped))


def look_at_spaces(probe: Probe, report: Report) -> None:
    actions: Any
    actions, observations = (getattr(probe.env, f"{kind}_space", None) for kind in ("action", "observation"))
    report.summary |= {"actions": _one_line(actions), "observations": _one_line(observations)}
    look_for_unsupported("action", actions, report)  # before masks, which are made for it
    look_for_unsupported("observation", probe.masks.observation_space, report, probe.masks.key)
    for path, leaf in named_leaves(actions):
        if isinstance(leaf, spaces.Box):
            look_at_box_action(f"action{path}", leaf, report)


def look_for_unsupported(kind: str, space: Any, report: Report, mask_key: str | None = None) -> None:
    """What the policy observes, all but the entry `mask_key`, or what it does."""
    size = 0
    for path, leaf in named_leaves(space):
        try:
            size += math.prod(space_tree(leaf).shape)
        except ProxRLError as error:
            report.add("space-unsupported", f"{kind}_space{path} is {_one_line(leaf)}: {error}")
            raise StopLooking from None
    if not size:
        but = "" if mask_key is None else f" but {mask_key!r}, which only says what is allowed (unless --action-mask is off)"
        report.add("space-unsupported", f"{kind}_space holds nothing{but}: there must be at least one number")
        raise StopLooking


def look_at_box_action(label: str, space: spaces.Box, report: Report) -> None:
    if not np.issubdtype(space.dtype, np.floating):
        report.add("action-whole-numbers", f"{label} is {space}, of dtype {space.dtype}")
        raise StopLooking
    if space.dtype == np.float64:
        report.add("action-float64", f"{label} is {space}, of dtype float64")
    bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    for index, (least, most) in enumerate(bounds):
        ranges = f"{label}{entry(space.shape, index)} ranges from {least:g} to {most:g}"
        unclipped = (math.erf(most / math.sqrt(2)) - math.erf(least / math.sqrt(2))) / 2  # share of a unit Gaussian's samples
        if math.isinf(least) or math.isinf(most):
            report.add("action-unbounded", ranges)
        elif most - least > 20:
            report.add("action-range-large", ranges)
        elif unclipped < 0.1:
            report.add("action-range-small", ranges)


def replay(probe: Probe, report: Report, seed: int) -> None:
    """The same seed and actions: in two environments, again after an unfinished episode, and with other seeds."""
    probe.env.action_space.seed(seed)
    actions = [probe.env.action_space.sample() for _ in range(REPLAY_STEPS)]
    first = trajectory(probe, seed, actions, REPLAY_SECONDS)
    actions = actions[: len(first) - 1]
    probe.reopen()
    second = trajectory(probe, seed, actions)
    trajectory(probe, seed, actions[: (len(actions) + 1) // 2])
    if not _same(first, second):
        known = probe.env.spec is not None and probe.env.spec.nondeterministic
        report.add("not-deterministic", "the same seed and actions give another episode", "note" if known else None)
    elif not _same(first, trajectory(probe, seed, actions)):
        report.add("state-leaks", "the same seed and actions give another episode after an unfinished one")
    elif all(_same(first, trajectory(probe, seed + other, actions)) for other in (1, 2, 3)):
        report.add("seed-unused", "every seed gives the same episode for the same actions")


def trajectory(probe: Probe, seed: int, actions: list[Any], seconds: float = math.inf) -> list[Moment]:
    deadline = time.monotonic() + seconds
    moments = [Moment(deepcopy(probe.reset(seed)), 0.0, False, False)]
    for action in actions:
        moment = probe.step(action)
        moments.append(moment._replace(obs=deepcopy(moment.obs)))
        if moment.ended or time.monotonic() > deadline:
            break
    return moments


def _same(one: list[Moment], other: list[Moment]) -> bool:
    return len(one) == len(other) and all(data_equivalence(tuple(a), tuple(b)) for a, b in zip(one, other, strict=True))


def play(probe: Probe, report: Report, seed: int, episodes: int, limit: int) -> None:
    """Whole episodes of random actions, and what they look like together."""
    probe.seconds = {"reset": [], "step": []}  # what came before has warmed everything up
    probe.env.action_space.seed(seed)
    deadline = time.monotonic() + PLAY_SECONDS
    numbers = Numbers(probe.masks.observation_space)
    rewards: list[float] = []
    ended: list[tuple[int, float, Moment]] = []  # length, return, last moment
    for episode in range(episodes):
        moment, length, begin = Moment(probe.reset(seed + episode), 0.0, False, False), 0, len(rewards)
        while not moment.ended and length < limit and time.monotonic() < deadline:
            numbers.keep(probe.observed)
            moment, length = probe.step(probe.env.action_space.sample()), length + 1
            rewards.append(moment.reward)
        if not moment.ended:
            if not _has_time_limit(probe.env) and (length >= limit or not ended):
                report.add("endless", f"no end within {length:,} steps of random actions, and no time limit")
            break
        ended.append((length, math.fsum(rewards[begin:]), moment))
    look_at_endings(ended, report)
    look_at_rewards(np.array(rewards), report)
    look_at_numbers(numbers, report)
    step, reset = (1e6 * float(np.mean(probe.seconds[name])) for name in ("step", "reset"))
    report.summary |= {"episodes": len(ended), "step_microseconds": round(step, 1), "reset_microseconds": round(reset, 1)}
    if ended:
        returns = [total for _, total, _ in ended]
        report.summary["lengths"] = [min(length for length, _, _ in ended), max(length for length, _, _ in ended)]
        report.summary |= {"return_mean": float(np.mean(returns)), "return_deviation": float(np.std(returns))}
    cost = sum(map(sum, probe.seconds.values())) / len(rewards) * 1e6  # resets count: short episodes consist of them
    if cost > SLOW_STEP and report.summary["vector"] == "inprocess":
        report.add("slow-step", f"a step takes {cost:,.0f} µs, its share of resets included")


def _one_line(space: Any) -> str:
    return " ".join(str(space).split())


def _has_time_limit(env: gymnasium.Env) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False
