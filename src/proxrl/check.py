"""`proxrl check`: play an environment at random and say in words what would spoil training on it.

The words are in findings.py, single calls in probe.py; here are the experiments. Every complaint of Gymnasium's own checker is
a warning: it guards an interface, and what breaks PPO is an error found here.
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
from numpy.typing import NDArray

from proxrl.config import Config
from proxrl.envs.gymnasium import make_env
from proxrl.envs.registry import EnvName, check_env, choose_vector
from proxrl.errors import ProxRLError
from proxrl.findings import BETTER, LEVELS, Report
from proxrl.imports import one_line
from proxrl.presets import load_preset
from proxrl.probe import Legal, Moment, Probe, StopLooking, leaves_of

SLOW_STEP = 1000.0  # microseconds from which handing a step to another process costs little beside it
LARGE, SMALL = 100.0, 1e-3  # far from the unit scale that initial weights and step sizes are made for
REPLAY_STEPS, REPLAY_SECONDS, PLAY_SECONDS = 200, 2.0, 20.0  # so that a slow environment does not keep us for ever
KEPT_ROWS, KEPT_SIZE = 5000, 1024  # observations looked at for their scale; larger ones are images
FEWEST = 3  # episodes that must agree before it is no coincidence


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
        look_at_spaces(probe.env, report)
        replay(probe, report, seed)
        play(probe, report, seed, episodes, limit)
        if probe.has_masks:
            report.add("mask-unused", "the environment gives action masks")
    except StopLooking:
        pass
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


def look_at_spaces(env: gymnasium.Env, report: Report) -> None:
    kinds = {kind: getattr(env, f"{kind}_space", None) for kind in ("observation", "action")}
    report.summary |= {f"{kind}s": " ".join(str(space).split()) for kind, space in kinds.items()}
    for kind, space in kinds.items():
        if not isinstance(space, spaces.Box | spaces.Discrete):
            report.add("space-unsupported", f"{kind}_space is {' '.join(str(space).split())}")
            raise StopLooking
        if kind == "action" and isinstance(space, spaces.Box):
            look_at_box_action(space, report)


def look_at_box_action(space: spaces.Box, report: Report) -> None:
    if not np.issubdtype(space.dtype, np.floating):
        report.add("action-whole-numbers", f"the action space {space} has dtype {space.dtype}")
        raise StopLooking
    if space.dtype == np.float64:
        report.add("action-float64", f"the action space {space} has dtype float64")
    for least, most in zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True):
        unclipped = (math.erf(most / math.sqrt(2)) - math.erf(least / math.sqrt(2))) / 2  # share of a unit Gaussian's samples
        if math.isinf(least) or math.isinf(most):
            report.add("action-unbounded", f"an action ranges from {least:g} to {most:g}")
        elif most - least > 20:
            report.add("action-range-large", f"an action ranges from {least:g} to {most:g}")
        elif unclipped < 0.1:
            report.add("action-range-small", f"an action ranges from {least:g} to {most:g}")


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
    rows: list[NDArray[Any]] = []
    rewards: list[float] = []
    ended: list[tuple[int, float, Moment]] = []  # length, return, last moment
    for episode in range(episodes):
        moment, length, begin = Moment(probe.reset(seed + episode), 0.0, False, False), 0, len(rewards)
        while not moment.ended and length < limit and time.monotonic() < deadline:
            if len(rows) < KEPT_ROWS:
                rows.append(_numbers(probe.env.observation_space, moment.obs))
            moment, length = probe.step(probe.env.action_space.sample()), length + 1
            rewards.append(moment.reward)
        if not moment.ended:
            if not _has_time_limit(probe.env) and (length >= limit or not ended):
                report.add("endless", f"no end within {length:,} steps of random actions, and no time limit")
            break
        ended.append((length, math.fsum(rewards[begin:]), moment))
    look_at_endings(ended, report)
    look_at_rewards(np.array(rewards), report)
    look_at_scale(np.array(rows), report)
    step, reset = (1e6 * float(np.mean(probe.seconds[name])) for name in ("step", "reset"))
    report.summary |= {"episodes": len(ended), "step_microseconds": round(step, 1), "reset_microseconds": round(reset, 1)}
    if ended:
        returns = [total for _, total, _ in ended]
        report.summary["lengths"] = [min(length for length, _, _ in ended), max(length for length, _, _ in ended)]
        report.summary |= {"return_mean": float(np.mean(returns)), "return_deviation": float(np.std(returns))}
    cost = sum(map(sum, probe.seconds.values())) / len(rewards) * 1e6  # resets count: short episodes consist of them
    if cost > SLOW_STEP and report.summary["vector"] == "inprocess":
        report.add("slow-step", f"a step takes {cost:,.0f} µs, its share of resets included")


def look_at_endings(ended: list[tuple[int, float, Moment]], report: Report) -> None:
    lengths = {length for length, _, _ in ended}
    both = sum(last.terminated and last.truncated for _, _, last in ended)
    if both:
        always = both == len(ended)  # then one flag is a copy of the other, where a coincidence would be a note
        report.add("both-endings", f"{both} of {len(ended)} episodes end terminated and truncated", "warning" if always else None)
    elif len(ended) >= FEWEST and len(lengths) == 1 and lengths != {1} and all(last.terminated for _, _, last in ended):
        what = f"all {len(ended)} episodes terminate after exactly {lengths.pop()} steps, whatever the actions"
        report.add("time-out-as-termination", f"{what}: probably a time limit")
    if len(ended) >= FEWEST and lengths == {1}:
        report.add("one-step", f"all {len(ended)} episodes end after one step")


def look_at_rewards(rewards: NDArray[np.float64], report: Report) -> None:
    largest = float(np.abs(rewards).max())
    if not largest:
        report.add("reward-zero", f"all {len(rewards):,} rewards are 0")
    elif not SMALL <= largest <= LARGE:
        report.add("reward-scale", f"the largest reward is {largest:.3g}")


def look_at_scale(rows: NDArray[np.float64], report: Report) -> None:
    if len(rows) < 10 or not rows.shape[1]:
        return
    deviation = rows.std(0)
    constant = np.flatnonzero(np.ptp(rows, 0) == 0)
    if len(constant):
        shown = ", ".join(map(str, constant[:5])) + (", ..." if len(constant) > 5 else "")
        report.add("observation-constant", f"{len(constant)} of {rows.shape[1]} observed numbers never change: index {shown}")
    varied = deviation[np.ptp(rows, 0) > 0]
    largest = float(np.abs(rows).max())
    if largest > LARGE or (len(varied) and varied.max() / varied.min() > 10 * LARGE):
        spread = f", deviations from {varied.min():.2g} to {varied.max():.2g}" if len(varied) else ""
        report.add("observation-scale", f"observed numbers reach {largest:.3g}{spread}")


def _numbers(space: gymnasium.Space, obs: Any) -> NDArray[np.float64]:
    """The numbers of an observation that reach the network as they are: no categories, no images."""
    plain = [
        value for _, leaf, value in leaves_of(space, obs) if isinstance(leaf, spaces.Box) and math.prod(leaf.shape) <= KEPT_SIZE
    ]
    return np.concatenate([np.zeros(0), *(np.ravel(value).astype(np.float64) for value in plain)])


def _has_time_limit(env: gymnasium.Env) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False
