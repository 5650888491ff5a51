"""How the algorithm calls learners: what they return is checked, and errors name the learner, since it may be the user's."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxrl.bonus.api import Learner, Stream
from proxrl.config import Coefficients
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Batch, Rollout

# The columns of a batch that learners see as tensors, in whichever library the policy is computed.
COLUMNS = ("action", "log_prob", "value", "advantage", "target", "weight", "rows", "starts")


def value_streams(learners: tuple[Learner, ...], now: Coefficients) -> list[Stream]:
    """Return the stream of the environment's rewards, then those of the learners that have their own."""
    streams = [Stream(now.gamma, now.gae_lambda)]
    for learner in learners:
        with named(learner, "stream"):
            stream = learner.stream(now)
        if not isinstance(stream, Stream | None):
            raise ProxRLError(f"{learner.label}: stream returned {_kind(stream)}, but must return a Stream or None")
        if (stream is None) != (learner.column == 0):
            raise ProxRLError(f"{learner.label}: stream must return either a Stream or None, the same in every iteration")
        if stream is not None:
            streams.append(stream)
    return streams


def learner_reward(learner: Learner, rollout: Rollout, now: Coefficients) -> NDArray[np.float32]:
    """Return the rewards [T, N] of a learner; those of rows that do not count are 0."""
    with named(learner, "reward"):
        given = learner.reward(rollout, now)
        reward = np.asarray(given, np.float32)
    shape = rollout.reward.shape
    if given is None or reward.shape not in ((), shape):
        got = _kind(given) if given is None else f"the shape {reward.shape}"
        raise ProxRLError(
            f"{learner.label}: reward returned {got}, but must return one number, or those of {shape[0]} steps of {shape[1]}"
            f" environments: {shape}"
        )
    reward = np.where(rollout.valid, reward, np.float32(0))
    if not np.isfinite(reward).all():
        raise ProxRLError(f"{learner.label}: reward returned {reward[~np.isfinite(reward)][0]}, but must return finite numbers")
    return reward


def learner_losses(learners: tuple[Learner, ...], batch: Batch, features: Tensor | None) -> list[Tensor]:
    """Return the terms of all learners' losses, in the order of `term_names`."""
    return [loss for learner in learners for loss in _losses(learner, batch, features)]


def _losses(learner: Learner, batch: Batch, features: Tensor | None) -> Iterator[Tensor]:
    columns: dict[str, Any] = {name: torch.as_tensor(getattr(batch, name)) for name in COLUMNS}
    obs, seen = (batch.obs, features) if learner.sees_features else (None, None)
    with named(learner, "loss"):
        losses = learner.loss(Batch(obs=obs, state=batch.state, **columns), None if seen is None else seen.float())
    if not isinstance(losses, Mapping) or losses.keys() != set(learner.terms):
        got = f"the terms {', '.join(map(str, losses)) or '{}'}" if isinstance(losses, Mapping) else _kind(losses)
        named_terms = f"its terms: {', '.join(learner.terms)}" if learner.terms else "its terms, of which there are none"
        raise ProxRLError(f"{learner.label}: loss returned {got}, but must return a dict of {named_terms}")
    for name in learner.terms:
        loss = losses[name]
        if not isinstance(loss, Tensor) or loss.dim() > 0 or not loss.is_floating_point():
            got = f"a tensor of shape {tuple(loss.shape)} of {loss.dtype}" if isinstance(loss, Tensor) else _kind(loss)
            raise ProxRLError(
                f"{learner.label}: the term {name} of its loss is {got}, but must be a tensor of one number, such as"
                " batch.mean(column)"
            )
        if not math.isfinite(loss.item()):
            rows = len(batch.weight)
            hint = "" if rows else "; a rank may have no row of a minibatch: use batch.mean(column)"
            raise ProxRLError(
                f"{learner.label}: the term {name} of its loss is {loss.item()} in a minibatch of {rows} rows{hint}"
            )
        yield loss.float()


def learner_metrics(learners: tuple[Learner, ...]) -> dict[str, float]:
    """Return what all learners log after an iteration."""
    metrics: dict[str, float] = {}
    for learner in learners:
        with named(learner, "metrics"):
            metrics |= {name: float(value) for name, value in learner.metrics().items()}
    return metrics


def term_names(learners: tuple[Learner, ...]) -> tuple[str, ...]:
    return tuple(name for learner in learners for name in learner.terms)


@contextmanager
def named(learner: Learner, method: str) -> Iterator[None]:
    """Name the learner in an error that it raises."""
    try:
        yield
    except ProxRLError:
        raise
    except Exception as error:
        raise ProxRLError(f"{learner.label}: {method} failed: {one_line(error)} (--debug shows where)") from error


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
