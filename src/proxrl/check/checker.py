"""The experiments of `proxrl check`: play an environment with random actions and report what would spoil training on it.

findings.py holds the texts of the findings, checked_env.py checks single calls, and episodes.py compares whole episodes.
Complaints of Gymnasium's own checker are warnings: it guards an interface. What breaks PPO is an error and is detected here.
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

from proxrl.check.checked_env import CheckedEnv, StopCheck, Transition
from proxrl.check.episodes import ObservationRows, PlayedEpisode, check_endings, check_observations, check_rewards
from proxrl.check.findings import COVERED_BY, LEVELS, CheckReport
from proxrl.check.masked_play import ReplaceForbidden
from proxrl.config import Config
from proxrl.config.presets import load_preset
from proxrl.envs.gymnasium import make_env
from proxrl.envs.interface import missing_space
from proxrl.envs.leaves import index_text, named_leaves
from proxrl.envs.registry import EnvName, check_env, choose_vector
from proxrl.envs.spaces import USUAL_CHANNELS, channels_assumption, is_image, space_tree
from proxrl.envs.wrapping import Wrapping
from proxrl.errors import ProxRLError, one_line

LEAST_PIXELS = 16  # each way; smaller arrays may be anything
SLOW_STEP = 1000.0  # microseconds; above it, the cost of passing a step to another process is comparatively small
REPLAY_STEPS, REPLAY_SECONDS, PLAY_SECONDS = 200, 2.0, 20.0  # limits for slow environments


def check(
    env: EnvName,
    env_kwargs: dict[str, Any] | None = None,
    episodes: int = 10,
    seed: int = 1,
    limit: int = 10_000,
    debug: bool = False,
    wrapping: Wrapping | None = None,
) -> CheckReport:
    """Run all checks on `env` with its wrappers, with at most `limit` steps per episode, and return the report.

    The environment is made three times, but never twice at once, because a simulator may hold a port.
    """
    if episodes < 1 or not 0 <= seed < 2**31:
        raise ProxRLError(f"--episodes is {episodes} and must be at least 1; --seed is {seed} and must be from 0 to 2**31 - 1")
    family = check_env(env)
    if isinstance(env, str) and ":" not in env and env not in gymnasium.registry:
        raise ProxRLError(f"only EnvPool has {env}; proxrl check works with Gymnasium environments and your own")
    kwargs, name = env_kwargs or {}, env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    preset = load_preset(family.preset, name)
    num_envs = preset["num_envs"].value if "num_envs" in preset else Config().num_envs
    vector = choose_vector(env, num_envs, family, kwargs, wrapping is not None and wrapping.is_needed)
    report = CheckReport(name, summary={"preset": family.preset, "num_envs": num_envs, "vector": vector})
    checked = CheckedEnv(lambda: make_env(env, kwargs, wrapping=wrapping), report, debug)
    try:
        check_spaces(checked, report)
        check_reproducible(checked, report, seed)
        check_random_play(checked, report, seed, episodes, limit)
    except StopCheck:
        pass
    if checked.has_masks and checked.masks.expected:
        report.summary["action_mask"] = checked.masks.location
    checked.reopen()
    for complaint in gymnasium_complaints(ReplaceForbidden(checked.env) if checked.has_masks else checked.env):
        covering = [codes for part, codes in COVERED_BY if part in complaint]
        if not any(not codes or report.codes & set(codes) for codes in covering):
            report.add("gymnasium", f"Gymnasium's checker: {complaint}")
    checked.close()
    report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return report


def gymnasium_complaints(env: gymnasium.Env) -> list[str]:
    """Return the warnings of Gymnasium's checker, and the assertion that stopped it, as plain lines."""
    stopped_by = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gymnasium_check(env, skip_render_check=True, skip_close_check=True)
        except (Exception, SystemExit) as error:
            raised_in = list(traceback.walk_tb(error.__traceback__))[-1][0].f_globals.get("__name__", "")
            # An assertion of the checker is its result; any other exception comes from the environment or follows from a fault.
            is_result = isinstance(error, AssertionError | gymnasium.error.Error) and raised_in.startswith("gymnasium.utils")
            stopped_by = [str(error) if is_result else f"stopped by {one_line(error)}"]
    messages = [re.sub(r"\x1b\[[\d;]*m", "", str(warning.message)) for warning in caught]
    # Warnings without this prefix come from the environment itself.
    complaints = [message.removeprefix("WARN: ") for message in messages if message.startswith("WARN: ")]
    return list(dict.fromkeys(" ".join(line.split()) for line in complaints + stopped_by))


def check_spaces(checked: CheckedEnv, report: CheckReport) -> None:
    """Check that training supports both spaces, and that the ranges of Box actions suit a Gaussian policy."""
    actions: Any
    actions, observations = (getattr(checked.env, f"{kind}_space", None) for kind in ("action", "observation"))
    report.summary |= {"actions": _one_line(actions), "observations": _one_line(observations)}
    missing = missing_space(checked.env)
    if missing is not None:
        report.add(*missing)
        raise StopCheck
    check_supported("action", actions, report)  # first, because `checked.masks` needs a supported action space
    check_supported("observation", checked.masks.observation_space, report, checked.masks.key)
    for path, leaf in named_leaves(checked.masks.observation_space):
        check_image(f"observation{path}", leaf, report)
    for path, leaf in named_leaves(actions):
        if isinstance(leaf, spaces.Box):
            check_box_action(f"action{path}", leaf, report)


def check_image(label: str, space: gymnasium.Space, report: CheckReport) -> None:
    """Check that what looks like an image is recognized as one, and that its axes are not a guess."""
    shape = space.shape or ()
    if is_image(space):
        assumption = channels_assumption(shape)
        if assumption is not None:
            report.add("image-channels", f"{label}: {assumption[0].lower()}{assumption[1:]}")
    elif isinstance(space, spaces.Box) and looks_like_image(shape, space.dtype):
        numbers = f"treated as {math.prod(shape):,} separate numbers, without convolutions"
        report.add("image-not-recognized", f"{label} is an array of shape {shape} and dtype {space.dtype}, {numbers}")


def looks_like_image(shape: tuple[int, ...], dtype: Any) -> bool:
    """Return whether a shape is that of pixels: two large axes and a few channels, or bytes with two large axes."""
    if len(shape) == 2:
        return min(shape) >= LEAST_PIXELS and dtype == np.uint8
    return len(shape) == 3 and min(shape) in USUAL_CHANNELS and sorted(shape)[1] >= LEAST_PIXELS


def check_supported(kind: str, space: Any, report: CheckReport, mask_key: str | None = None) -> None:
    """Check every leaf of a space; `mask_key` is the entry of the observation that was removed because it is the mask."""
    size = 0
    for path, leaf in named_leaves(space):
        try:
            size += math.prod(space_tree(leaf).shape)
        except ProxRLError as error:
            report.add("space-unsupported", f"{kind}_space{path} is {_one_line(leaf)}: {error}")
            raise StopCheck from None
    if not size:
        but = "" if mask_key is None else f" but {mask_key!r}, which is only a mask (unless --action-mask is off)"
        report.add("space-unsupported", f"{kind}_space holds nothing{but}: there must be at least one number")
        raise StopCheck


def check_box_action(label: str, space: spaces.Box, report: CheckReport) -> None:
    """Check the dtype and the bounds of one Box of the action space."""
    if not np.issubdtype(space.dtype, np.floating):
        report.add("action-whole-numbers", f"{label} is {space}, of dtype {space.dtype}")
        raise StopCheck
    if space.dtype == np.float64:
        report.add("action-float64", f"{label} is {space}, of dtype float64")
    bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    for index, (low, high) in enumerate(bounds):
        description = f"{label}{index_text(space.shape, index)} ranges from {low:g} to {high:g}"
        # The share of a standard Gaussian's samples that lies inside the bounds.
        unclipped = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
        if math.isinf(low) or math.isinf(high):
            report.add("action-unbounded", description)
        elif high - low > 20:
            report.add("action-range-large", description)
        elif unclipped < 0.1:
            report.add("action-range-small", description)


def check_reproducible(checked: CheckedEnv, report: CheckReport, seed: int) -> None:
    """Play the same seed and actions in two environments and again after an unfinished episode, then with other seeds."""
    checked.env.action_space.seed(seed)
    actions = [checked.env.action_space.sample() for _ in range(REPLAY_STEPS)]
    first = trajectory(checked, seed, actions, REPLAY_SECONDS)
    actions = actions[: len(first) - 1]
    checked.reopen()
    second = trajectory(checked, seed, actions)
    trajectory(checked, seed, actions[: (len(actions) + 1) // 2])
    if not _same(first, second):
        documented = checked.env.spec is not None and checked.env.spec.nondeterministic
        what = "the same seed and actions give different episodes in two environments"
        report.add("not-deterministic", what, "note" if documented else None)
    elif not _same(first, trajectory(checked, seed, actions)):
        report.add("state-leaks", "the same seed and actions give a different episode after an unfinished one")
    elif all(_same(first, trajectory(checked, seed + other, actions)) for other in (1, 2, 3)):
        report.add("seed-unused", "every seed gives the same episode for the same actions")


def trajectory(checked: CheckedEnv, seed: int, actions: list[Any], seconds: float = math.inf) -> list[Transition]:
    """Play `actions` from a seeded reset until the episode ends or the time is up, and return what the environment returned."""
    deadline = time.monotonic() + seconds
    transitions = [Transition(deepcopy(checked.reset(seed)), 0.0, False, False)]
    for action in actions:
        transition = checked.step(action)
        transitions.append(transition._replace(obs=deepcopy(transition.obs)))
        if transition.ended or time.monotonic() > deadline:
            break
    return transitions


def _same(one: list[Transition], other: list[Transition]) -> bool:
    return len(one) == len(other) and all(data_equivalence(tuple(a), tuple(b)) for a, b in zip(one, other, strict=True))


def check_random_play(checked: CheckedEnv, report: CheckReport, seed: int, episodes: int, limit: int) -> None:
    """Play whole episodes with random actions; check their endings, rewards, observations and speed, and summarize them."""
    checked.seconds = {"reset": [], "step": []}  # drop the times of the first calls, which include warm-up
    checked.env.action_space.seed(seed)
    deadline = time.monotonic() + PLAY_SECONDS
    observations = ObservationRows(checked.masks.observation_space)
    rewards: list[float] = []
    finished: list[PlayedEpisode] = []
    for episode in range(episodes):
        transition, length, begin = Transition(checked.reset(seed + episode), 0.0, False, False), 0, len(rewards)
        while not transition.ended and length < limit and time.monotonic() < deadline:
            observations.add(checked.observation)
            transition, length = checked.step(checked.env.action_space.sample()), length + 1
            rewards.append(transition.reward)
        if not transition.ended:
            if not _has_time_limit(checked.env) and (length >= limit or not finished):
                report.add("endless", f"no end within {length:,} steps of random actions, and no time limit")
            break
        finished.append(PlayedEpisode(length, math.fsum(rewards[begin:]), transition))
    check_endings(finished, report)
    check_rewards(np.array(rewards), report)
    check_observations(observations, report)
    summarize_play(checked, report, finished)
    cost = sum(map(sum, checked.seconds.values())) / len(rewards) * 1e6  # with resets: they dominate short episodes
    if cost > SLOW_STEP and report.summary["vector"] == "inprocess":
        report.add("slow-step", f"a step takes {cost:,.0f} µs, including its share of resets")


def summarize_play(checked: CheckedEnv, report: CheckReport, finished: list[PlayedEpisode]) -> None:
    """Put the times of the calls, and the lengths and returns of the episodes, into the summary."""
    step, reset = (1e6 * float(np.mean(checked.seconds[name])) for name in ("step", "reset"))
    report.summary |= {"episodes": len(finished), "step_microseconds": round(step, 1), "reset_microseconds": round(reset, 1)}
    if finished:
        lengths, returns = [episode.length for episode in finished], [episode.total_reward for episode in finished]
        report.summary["lengths"] = [min(lengths), max(lengths)]
        report.summary |= {"return_mean": float(np.mean(returns)), "return_deviation": float(np.std(returns))}


def _one_line(space: Any) -> str:
    return " ".join(str(space).split())


def _has_time_limit(env: gymnasium.Env) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False
