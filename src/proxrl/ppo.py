"""Proximal Policy Optimization: the algorithm.

    one iteration = collect → advantage → update → report

Functions appear roughly in the order in which `train` calls them, with helpers at the end. Everything that differs between tasks
and machines is one of the `Parts`, built by build.py: a variant is another part, not another loop. "Core detail n" refers to the
numbering of "The 37 Implementation Details of Proximal Policy Optimization"; docs/details.md maps each one to its code and its
test. Details that are not written out here are one named call away: among them advantage normalization in
collect/minibatches.py, gradient clipping in engine/descent.py, and annealing in `Config.at`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxrl.bonus.api import Learner, Stream
from proxrl.bonus.calling import learner_metrics, learner_reward, term_names, value_streams
from proxrl.collect.collector import Collector
from proxrl.collect.minibatches import Minibatches, moments
from proxrl.collect.rewards import RewardScaler
from proxrl.common.seeding import Purpose, generator
from proxrl.config import Coefficients, Config, Phase
from proxrl.engine.adaptive import AdaptiveCoefficients
from proxrl.engine.api import Compute, Evaluation, Outputs
from proxrl.engine.descent import GradientDescent
from proxrl.engine.flat import FlatParameters
from proxrl.engine.optimizers import Optimizer
from proxrl.envs.api import Environments
from proxrl.errors import DivergedError
from proxrl.log.activity import Activity
from proxrl.policy.policy import Policy
from proxrl.session import Session
from proxrl.types import Array, Batch, Rollout, Terms
from proxrl.world.api import World

Streams = list[np.random.Generator]
Estimator = Callable[..., Array]  # takes and returns what `gae` does


APPROX_KL = Terms._fields.index("approx_kl")


@dataclass
class Parts:
    """What the algorithm runs on."""

    config: Config
    world: World  # the ranks that train together
    environments: Environments  # those of this rank
    first_env: int  # number of this rank's first environment among those of all ranks
    policy: Policy  # orthogonal initial weights (core detail 2), separate networks for policy and value (core detail 13)
    parameters: FlatParameters
    compute: Compute  # how the policy's arithmetic is done: numpy or torch
    optimizer: Optimizer  # Adam with an epsilon of 1e-5 (core detail 3)
    descent: GradientDescent
    adaptive: AdaptiveCoefficients
    reward_scaler: RewardScaler
    collector: Collector
    minibatches: Minibatches
    estimator: Estimator  # of advantages: by default `gae`
    learners: tuple[Learner, ...]  # what learns beside the policy, such as curiosity; usually none
    activity: Activity  # what collector and minibatches are doing, for the display


def train(parts: Parts, session: Session) -> None:
    """Iterate until the step budget is spent, or until the ranks agree to stop."""
    config = parts.config
    parts.collector.reset(config.seed, session.episode_counts)
    while session.step < config.planned_steps and not session.stopping:
        # The coefficients follow their schedules: by default the learning rate falls linearly to zero (core detail 4).
        now = parts.adaptive.apply_to(config.at(session.step))
        streams = random_streams(parts, session.iteration)

        # T steps of N environments, which carry over to the next rollout (core detail 1).
        rollout = parts.collector.collect(streams, budget=config.planned_steps - session.step)
        session.call_on_rollout(rollout)
        batch = advantage(parts, rollout, now)
        metrics = update(parts, batch, streams, now, config.phases(session.step))
        parts.adaptive.observe(metrics)
        # Statistics were frozen until here, so that the policy that learned is the one that acted.
        parts.policy.preprocess.merge(rollout.obs, rollout.valid, parts.world)

        schedules = {f"charts/{name}": getattr(now, name) for name in config.scheduled}
        session.report(parts.collector.progress(rollout), schedules | metrics | learner_metrics(parts.learners))


def random_streams(parts: Parts, iteration: int) -> Streams:
    """Return one stream per environment and iteration: for the noise of its actions, then for the shuffles of its steps."""
    envs = range(parts.first_env, parts.first_env + parts.environments.num_envs)
    return [generator(parts.config.seed, Purpose.ROLLOUT, env, iteration) for env in envs]


# --- advantage ---------------------------------------------------------------------------------------------------------------


def advantage(parts: Parts, rollout: Rollout, now: Coefficients) -> Batch:
    """Evaluate the rollout with the policy that acted and estimate advantages; return one row per step of each environment."""
    compute, library = parts.compute, parts.compute.library
    streams = value_streams(parts.learners, now)
    reward = compute.array(rewards(parts, rollout, now, len(streams)))
    evaluation = compute.evaluate(rollout)
    estimates = [estimate(parts, stream, rollout, reward[..., h], evaluation, h) for h, stream in enumerate(streams)]
    value = evaluation.value[:-1]
    columns = {
        "log_prob": evaluation.log_prob,
        "value": value,
        "advantage": sum(stream.coef * each for stream, each in zip(streams, estimates, strict=True)),
        "target": library.stack(estimates, -1) + value,
        "weight": compute.array(rollout.valid.astype(np.float32)),
        "rows": compute.array(np.arange(rollout.valid.size).reshape(rollout.valid.shape)),
        "starts": compute.array(rollout.starts[:-1]),
    }
    flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
    states = tuple(state[:-1].flatten(0, 1) for state in rollout.states)
    return Batch(evaluation.obs, evaluation.action, **flat, state=states)


def estimate(parts: Parts, stream: Stream, rollout: Rollout, reward: Array, evaluation: Evaluation, h: int) -> Array:
    """Estimate the advantages [T, N] of value stream `h`. Usually there is one, of the environment's rewards."""
    compute, library = parts.compute, parts.compute.library
    value, next_value = evaluation.value[..., h], evaluation.next_value[..., h]
    valid = compute.array(rollout.valid.astype(np.float32))
    terminated, ended = rollout.terminated, rollout.terminated | rollout.truncated
    if not stream.episodic:  # the end of an episode is followed by the beginning of the next
        terminated = ended = np.zeros_like(ended)
        observed = rollout.valid.copy()
        observed[1:] |= rollout.last[:-1]  # past the step budget, but where the last step that counts has led
        next_value = following(library, value, compute.array(observed))
    # At a truncation and at the end of the rollout, the successor's value stands for all rewards that would have followed.
    limit = _limit(parts.config.clip_bootstrap)
    bootstrapped = compute.array(ended & ~terminated | rollout.last)
    next_value = library.where(bootstrapped, library.clip(next_value, -limit, limit), next_value)
    ends = (compute.array(end.astype(np.float32)) for end in (terminated, ended | rollout.last))
    return parts.estimator(reward, value[:-1], next_value, *ends, stream.gamma, stream.gae_lambda, valid)


def rewards(parts: Parts, rollout: Rollout, now: Coefficients, streams: int) -> NDArray[np.float32]:
    """Return the rewards of every value stream [T, N, H]: those of the environments, scaled, and what the learners add."""
    reward = np.zeros((*rollout.reward.shape, streams), np.float32)
    reward[..., 0] = parts.reward_scaler.scale(rollout, now.gamma, parts.world)
    for learner in parts.learners:
        reward[..., learner.column] += learner_reward(learner, rollout, now)
    return reward


def gae(
    reward: Array,  # [T, N]
    value: Array,  # [T, N] of the observation acted on
    next_value: Array,  # [T, N] of its true successor, even if autoreset has replaced it
    terminated: Array,  # [T, N] 1 where nothing follows
    trace_ends: Array,  # [T, N] 1 where the next row is another episode's, or does not count
    gamma: float,
    gae_lambda: float,
    valid: Array | float = 1.0,  # [T, N] 0 for rows that do not count; the trace passes over them
) -> Array:
    """Generalized advantage estimation (core detail 5).

        delta_t = r_t + gamma * (1 - terminated_t) * V(successor_t) - V(s_t)
        A_t = delta_t + gamma * lambda * (1 - trace_ends_t) * A_{t+1}

    A terminated step has no successor to bootstrap from; a truncated step does. Both end the trace, because the next row belongs
    to another episode.
    """
    result = valid * (reward + gamma * (1 - terminated) * next_value - value)
    decay = valid * (gamma * gae_lambda * (1 - trace_ends)) + (1 - valid)
    for t in range(len(result) - 2, -1, -1):
        result[t] += decay[t] * result[t + 1]
    return result


def following(library: Any, value: Array, observed: Array) -> Array:
    """Return the value of the next row [T, N] that is no dummy step, for values [T + 1, N]."""
    result = value[1:] + 0
    for t in range(len(result) - 2, -1, -1):
        result[t] = library.where(observed[t + 1], value[t + 1], result[t + 1])
    return result


# --- update ------------------------------------------------------------------------------------------------------------------


def update(parts: Parts, batch: Batch, streams: Streams, now: Coefficients, phases: Sequence[Phase]) -> dict[str, float]:
    """Learn from one batch; return the loss terms, averaged over minibatches, and diagnostics (core detail 12)."""
    metrics = {"losses/explained_variance": explained_variance(parts, batch)}
    for phase in phases:
        metrics |= learn(parts, batch, streams, now, phase)
    if not all(math.isfinite(metric) for metric in metrics.values()):
        raise DivergedError(
            "the loss is not finite; under another --name, try a lower --learning-rate or a smaller --max-grad-norm"
        )
    return metrics


def learn(parts: Parts, batch: Batch, streams: Streams, now: Coefficients, phase: Phase) -> dict[str, float]:
    """Take one optimizer step per minibatch, over some epochs, in which the policy, the value or both learn."""
    history = []
    # Shuffled in every epoch (core detail 6), advantages normalized within each minibatch (core detail 7).
    for minibatch in parts.minibatches.draw(batch, streams, phase.epochs):
        terms = parts.descent.differentiate(minibatch, loss, now, phase)
        history.append(terms)
        # Checked before the step, by a number that all ranks share, so that they stop together. The value has no such limit.
        if phase.policy and now.target_kl is not None and terms[APPROX_KL] > now.target_kl:
            break
        parts.descent.step(now, phase)  # clips the gradient's global norm first (core detail 11)
    # With next-step autoreset, a rollout can consist of dummy steps alone.
    return _summary(torch.stack(history), phase, parts) if history else {}


def loss(library: Any, outputs: Outputs, batch: Batch, now: Coefficients) -> tuple[Terms, Outputs]:
    """policy loss + value_coef * value loss - entropy_coef * entropy (core detail 10) + kl_coef * KL divergence.

    Returns the terms of this loss, and its gradient with respect to the three outputs of the networks; backpropagation through
    the networks does the rest. The gradient is written out beside each term because numpy has no autograd, and small networks
    train several times as fast in numpy; in torch it saves 5 to 9% of a minibatch (docs/performance.md). `library` is the module
    of the arrays: numpy or torch.
    """
    log_ratio = outputs.log_prob - batch.log_prob
    ratio = library.exp(log_ratio)
    surrogate, surrogate_slope = clipped_surrogate(library, ratio, batch.advantage, _limit(now.clip))
    error, error_slope = clipped_value_error(library, outputs.value, batch, _limit(now.value_clip))
    divergence = ratio - 1 - log_ratio  # estimates KL(old || new); never negative, and of lower variance than -log_ratio
    terms = Terms(
        policy_loss=-batch.mean(surrogate),
        value_loss=batch.mean(error).sum(),  # over the value streams
        entropy=batch.mean(outputs.entropy),
        old_approx_kl=-batch.mean(log_ratio),
        approx_kl=batch.mean(divergence),
        clipfrac=(batch.weight * (abs(ratio - 1) > _limit(now.clip))).sum(),
    )
    # The slope of a mean is `weight` in each row. The slope of the divergence is d(ratio - log_ratio) / d log_prob = ratio - 1.
    gradient = Outputs(
        log_prob=now.kl_coef * batch.weight * (ratio - 1) - batch.weight * surrogate_slope,
        entropy=-now.entropy_coef * batch.weight,
        value=now.value_coef * batch.weight[:, None] * error_slope,
    )
    return terms, gradient


def clipped_surrogate(library: Any, ratio: Array, advantage: Array, clip: float) -> tuple[Array, Array]:
    """min(ratio * A, clip(ratio, 1 - clip, 1 + clip) * A) (core detail 8), and its slope with respect to log_prob.

    The smaller of the two counts, so that leaving the clip range gains nothing. Since ratio = exp(log_prob - old_log_prob),
    d ratio / d log_prob = ratio, and the slope is ratio * A if the first one is the smaller. If the second one is smaller, the
    ratio is outside the clip range: there the clipped ratio is constant, and the slope is 0.
    """
    surrogate = advantage * ratio
    clipped = advantage * library.clip(ratio, 1 - clip, 1 + clip)
    return library.minimum(surrogate, clipped), surrogate * (surrogate <= clipped)


def clipped_value_error(library: Any, value: Array, batch: Batch, clip: float) -> tuple[Array, Array]:
    """0.5 * max((value - target)^2, (clipped value - target)^2) (core detail 9), and its slope with respect to the value.

    The clipped value is within `clip` of the value at rollout time; again the worse of the two counts. Half the first square has
    the slope value - target. Within the clip range the second square equals it, but only up to rounding, so the range is tested
    too. Outside, the clipped value is constant: if the second square is the larger one, the slope is 0. If both are equal there,
    0 is one of the subgradients.
    """
    error = value - batch.target
    change = value - batch.value
    clipped_error = library.clip(change, -clip, clip) + batch.value - batch.target
    square, clipped_square = error * error, clipped_error * clipped_error
    learning = (abs(change) <= clip) | (square > clipped_square)
    return 0.5 * library.maximum(square, clipped_square), error * learning


def explained_variance(parts: Parts, batch: Batch) -> float:
    """1 - Var(target - value) / Var(target): 1 for perfect predictions, 0 for those no better than a constant."""
    library, rows = parts.compute.library, len(batch.weight)
    target, value = batch.target[:, 0], batch.value[:, 0]  # of the environment's rewards
    both = library.concatenate([target - value, target])
    weight, owner = library.concatenate([batch.weight] * 2), parts.compute.array(np.repeat(np.arange(2), rows))
    # Centered first: a large mean would cost all digits of single precision.
    centered = both - moments(both, weight, owner, 2, parts.compute, parts.world).mean[owner]
    unexplained, total = moments(centered, weight, owner, 2, parts.compute, parts.world).std.tolist()
    return 1 - (unexplained / total) ** 2 if total > 1e-7 else 0.0


def _summary(history: Tensor, phase: Phase, parts: Parts) -> dict[str, float]:
    """Average loss terms [minibatches, terms]; `final_kl` is the KL divergence over the last epoch's worth of minibatches."""
    names = Terms._fields + term_names(parts.learners)
    means = dict(zip(names, history.mean(0).tolist(), strict=True))
    means["final_kl"] = history[-parts.config.num_minibatches :, APPROX_KL].mean().item()
    return {f"losses/{name}": mean for name, mean in means.items() if (phase.value if name == "value_loss" else phase.policy)}


def _limit(setting: float | None) -> float:
    """A limit that is off is infinite."""
    return math.inf if setting is None else setting
