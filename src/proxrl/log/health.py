"""Whether training goes well: four metrics, what is abnormal about them, and what to do about it."""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import gymnasium
from gymnasium import spaces

from proxrl.config import Config

# A metric is judged by the median of this many iterations: one bad update is common and harmless.
ITERATIONS = 10


class Limit(NamedTuple):
    """The range in which a metric is normal, and what it means if it leaves the range for good."""

    metric: str
    label: str
    low: float
    high: float
    meaning: str
    decimals: int = 2
    after: int = ITERATIONS  # iterations before which nothing is said
    until: float = 1.0  # share of the run after which nothing is said


class Reading(NamedTuple):
    """A metric as it is now, such as "KL 0.0123", and what is wrong with it, or an empty text."""

    text: str
    problem: str


def limits(target_kl: float | None, lowest_entropy: float) -> list[Limit]:
    """Return the limits of a run. They are wide, because a warning that is often wrong is soon ignored."""
    return [
        # Healthy updates have a KL divergence between 0.001 and 0.05. A target above that is a wish to go further.
        Limit(
            "losses/approx_kl",
            "KL",
            -math.inf,
            max(0.1, 3 * (target_kl or 0.0)),
            "the policy changes too fast; lower --learning-rate or --epochs",
            decimals=4,
        ),
        # Healthy updates clip 5 to 30% of the steps. Steps outside the range have no gradient, so most of the batch is wasted.
        Limit(
            "losses/clipfrac",
            "clip fraction",
            -math.inf,
            0.4,
            "too many steps leave the clip range; lower --learning-rate or --epochs",
        ),
        # Late in a run, a policy that has solved its task may well be deterministic.
        Limit(
            "losses/entropy",
            "entropy",
            lowest_entropy,
            math.inf,
            "the policy hardly explores any more; raise --entropy-coef",
            until=0.5,
        ),
        # At first it is around 0, and with rare rewards it stays there; clearly below 0, the value function misleads the policy.
        Limit(
            "losses/explained_variance",
            "explained variance",
            -0.1,
            math.inf,
            "the value function predicts worse than a constant; lower --learning-rate or try --normalize-rewards",
            after=3 * ITERATIONS,
        ),
    ]


def lowest_entropy(space: gymnasium.Space | None) -> float:
    """Return the entropy below which a policy hardly explores, or -infinity if that can't be said of the action space.

    For choices it is 1% of the entropy of random ones; with two actions, the other one is then taken once in 1,200 steps. For
    numbers it is that of a Gaussian whose standard deviation is 0.01 in every dimension.
    """
    match space:
        case spaces.Discrete():
            return 0.01 * math.log(space.n)
        case spaces.MultiDiscrete():
            return 0.01 * sum(math.log(n) for n in space.nvec.ravel())
        case spaces.MultiBinary():
            return 0.01 * math.log(2) * math.prod(space.shape)
        case spaces.Box():
            return math.prod(space.shape) * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.01))
    return -math.inf


class Health:
    """Watches the metrics of the updates of one session."""

    def __init__(self, config: Config | None = None, action_space: gymnasium.Space | None = None) -> None:
        self._limits = limits(config.at(0).target_kl if config else None, lowest_entropy(action_space))
        self._recent: dict[str, deque[float]] = {limit.metric: deque(maxlen=ITERATIONS) for limit in self._limits}
        self._iterations, self._progress = 0, 0.0

    def observe(self, metrics: Mapping[str, float], progress: float) -> None:
        """Take the metrics of an iteration; `progress` is the share of the run that is done."""
        self._iterations, self._progress = self._iterations + 1, progress
        for name, values in self._recent.items():
            if name in metrics:
                values.append(metrics[name])

    def readings(self) -> list[Reading]:
        """Return the metrics that were logged so far, with their problems."""
        return [
            Reading(f"{limit.label} {self._recent[limit.metric][-1]:.{limit.decimals}f}", self._problem(limit))
            for limit in self._limits
            if self._recent[limit.metric]
        ]

    def _problem(self, limit: Limit) -> str:
        values = self._recent[limit.metric]
        if self._iterations < limit.after or len(values) < ITERATIONS or self._progress > limit.until:
            return ""
        return "" if limit.low <= statistics.median(values) <= limit.high else limit.meaning
