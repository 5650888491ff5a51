"""Proximal Policy Optimization, whole.

    one iteration = collect → advantage → update → report

Everything that differs between tasks and machines is a part plugged in by build.py: where environments run, what the policy
is made of, how its arithmetic is done, and with which other ranks. The functions follow in the order in which `train` calls
them; docs/details.md says where each of PPO's implementation details lives.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxrl.build import Parts
from proxrl.collect.minibatches import minibatches, moments, pieces
from proxrl.common.seeding import Purpose, generator
from proxrl.config import Coefficients, Phase
from proxrl.engine.api import Outputs
from proxrl.errors import DivergedError
from proxrl.session import Session
from proxrl.types import Array, Batch, Rollout, Terms

Streams = list[np.random.Generator]


def train(parts: Parts, session: Session) -> None:
    """Iterate until the step budget is spent, or until the ranks agree to stop."""
    config = parts.config
    parts.collector.reset(config.seed, session.own_episode_counts)
    while session.step < config.planned_steps and not session.stopping:
        now = parts.steering.apply_to(config.at(session.step))
        streams = random_streams(parts, session.iteration)

        rollout = parts.collector.collect(streams, budget=config.planned_steps - session.step)
        session.collected(rollout)
        batch = advantage(parts, rollout, now)
        losses = update(parts, batch, streams, now, config.phases(session.step))
        parts.steering.observe(losses)
        parts.policy.preprocess.merge(rollout.obs, rollout.valid, parts.world)

        session.report(rollout, {f"charts/{name}": getattr(now, name) for name in config.scheduled} | losses)


def random_streams(parts: Parts, iteration: int) -> Streams:
    """One stream per environment and iteration: it gives the noise of its actions, then the shuffles of its steps."""
    envs = range(parts.first_env, parts.first_env + parts.environments.num_envs)
    return [generator(parts.config.seed, Purpose.ROLLOUT, env, iteration) for env in envs]


# --- advantage ---------------------------------------------------------------------------------------------------------------


def advantage(parts: Parts, rollout: Rollout, now: Coefficients) -> Batch:
    """Evaluate the rollout in one pass and estimate advantages; gives one row per step of each environment."""
    compute, library = parts.compute, parts.compute.library
    reward = compute.array(parts.reward_scaler.scale(rollout, now.gamma, parts.world))
    seen = compute.evaluate(rollout)
    terminated = compute.array(rollout.terminated.astype(np.float32))
    ended = compute.array((rollout.terminated | rollout.truncated).astype(np.float32))
    # Where the clock or the rollout's end cuts an episode off, one value stands for all that would follow.
    cut = rollout.truncated.copy()
    cut[-1] = True
    limit = math.inf if parts.config.clip_bootstrap is None else parts.config.clip_bootstrap
    next_value = library.where(compute.array(cut), library.clip(seen.next_value, -limit, limit), seen.next_value)
    estimate = gae(reward, seen.value, next_value, terminated, ended, now.gamma, now.gae_lambda)
    weight = compute.array(rollout.valid.astype(np.float32))
    columns = (seen.log_prob, seen.value, estimate, estimate + seen.value, weight)
    return Batch(seen.obs, seen.action, *(column.reshape(-1) for column in columns))


def gae(
    reward: Array,  # [T, N]
    value: Array,  # [T, N] of the observation acted on
    next_value: Array,  # [T, N] of its true successor, even where autoreset has replaced it
    terminated: Array,  # [T, N] 1 where nothing follows
    ended: Array,  # [T, N] 1 where the episode ends, by termination or by truncation
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Generalised advantage estimation (core detail 5).

    A terminated step has no successor to bootstrap from; a truncated one has. Both cut the trace, because what follows is another
    episode. The end of the rollout is neither: there the trace is just not known further.
    """
    estimate = reward + gamma * (1 - terminated) * next_value - value
    decay = gamma * gae_lambda * (1 - ended)
    for t in range(len(estimate) - 2, -1, -1):
        estimate[t] += decay[t] * estimate[t + 1]
    return estimate


# --- update ------------------------------------------------------------------------------------------------------------------


def update(parts: Parts, batch: Batch, streams: Streams, now: Coefficients, phases: Sequence[Phase]) -> dict[str, float]:
    """Several epochs of minibatches over one batch (core detail 6); gives the loss terms, averaged over the minibatches."""
    config, compute, parameters, world = parts.config, parts.compute, parts.parameters, parts.world
    clip, value_clip, target_kl = (math.inf if limit is None else limit for limit in (now.clip, now.value_clip, now.target_kl))
    metrics = {"losses/explained_variance": explained_variance(parts, batch)}
    for phase in phases:
        seen = []
        for minibatch in minibatches(batch, streams, phase.epochs, config, compute, world, parts.first_env):
            parameters.message.zero_()
            for piece in pieces(minibatch, config.accumulate):
                outputs = compute.forward(piece)
                terms, gradient = loss(
                    compute.library, outputs, piece, clip, value_clip, now.entropy_coef, now.value_coef, now.kl_coef
                )
                compute.backward(gradient.only(phase.policy, phase.value), terms)
            world.sum_(parameters.message)  # weights sum to 1 over the ranks' shares, so the sum of gradients is their mean
            seen.append(parameters.carried.clone())
            # Before the step, and by a number that all ranks share: all stop together. The value has no such limit.
            if phase.policy and target_kl < math.inf and Terms(*parameters.carried).approx_kl > target_kl:
                break
            parameters.clip_gradient(now.max_grad_norm)
            parts.optimizer.step(now, phase)
        if seen:  # a short rollout may consist of dummy steps alone, all environments resetting together
            metrics |= summary(torch.stack(seen), phase, config.num_minibatches)
    if not all(math.isfinite(metric) for metric in metrics.values()):
        raise DivergedError(
            "the loss is no longer a number; try a lower --learning-rate under another --name, or a smaller --max-grad-norm"
        )
    return metrics


def summary(seen: Tensor, phase: Phase, num_minibatches: int) -> dict[str, float]:
    """Loss terms [minibatches, terms] as metrics: means, and the KL divergence of as many last minibatches as an epoch has."""
    means = Terms(*seen.mean(0).tolist())._asdict() | {"final_kl": Terms(*seen[-num_minibatches:].mean(0).tolist()).approx_kl}
    return {f"losses/{name}": mean for name, mean in means.items() if (phase.value if name == "value_loss" else phase.policy)}


def loss(
    library: Any,
    outputs: Outputs,
    batch: Batch,
    clip: float,
    value_clip: float,
    entropy_coef: float,
    value_coef: float,
    kl_coef: float,
) -> tuple[Terms, Outputs]:
    """policy loss + value_coef * value loss - entropy_coef * entropy (core detail 10) + kl_coef * KL divergence from the policy
    that acted, and its gradient at the three outputs.

    The gradient is written out because it is short, and because recording and replaying these few operations on a few
    hundred numbers costs autograd more than the networks themselves. `library` is numpy or torch.
    """
    log_prob, entropy, value = outputs
    weight = batch.weight

    # Clipped surrogate (core detail 8): the worse of the two, so there is no gain in leaving the clip range.
    log_ratio = log_prob - batch.log_prob
    ratio = library.exp(log_ratio)
    surrogate = batch.advantage * ratio
    clipped_surrogate = batch.advantage * library.clip(ratio, 1 - clip, 1 + clip)
    unclipped = surrogate <= clipped_surrogate
    weighted_surrogate = weight * surrogate

    # Clipped value loss (core detail 9): around the value at rollout time, again the worse of the two.
    error = value - batch.target
    moved = value - batch.value
    clipped_error = library.clip(moved, -value_clip, value_clip) + batch.value - batch.target
    square, clipped_square = error * error, clipped_error * clipped_error
    inside = (abs(moved) <= value_clip) | (square > clipped_square)

    terms = Terms(
        policy_loss=-(weight @ library.minimum(surrogate, clipped_surrogate)),
        value_loss=0.5 * (weight @ library.maximum(square, clipped_square)),
        entropy=weight @ entropy,
        old_approx_kl=-(weight @ log_ratio),
        approx_kl=weight @ (ratio - 1 - log_ratio),  # never negative, and of lower variance than the line above
        clipfrac=(weight * (abs(ratio - 1) > clip)).sum(),
    )
    gradient = Outputs(
        log_prob=kl_coef * weight * (ratio - 1) - weighted_surrogate * unclipped,
        entropy=-entropy_coef * weight,
        value=value_coef * weight * error * inside,
    )
    return terms, gradient


def explained_variance(parts: Parts, batch: Batch) -> float:
    """1 - Var(target - value) / Var(target): 1 is perfect foresight, 0 no better than a constant."""
    library, world, rows = parts.compute.library, parts.world, len(batch.weight)
    both = library.concatenate([batch.target - batch.value, batch.target])
    weight, owner = library.concatenate([batch.weight] * 2), parts.compute.array(np.repeat(np.arange(2), rows))
    # Around their means: large ones would cost all digits of single precision.
    centred = both - moments(both, weight, owner, 2, parts.compute, world)[1][owner]
    unexplained, target = moments(centred, weight, owner, 2, parts.compute, world)[2].tolist()
    return 1 - (unexplained / target) ** 2 if target > 1e-7 else 0.0
