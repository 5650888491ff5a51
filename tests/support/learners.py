"""Learners and an advantage estimator of a user, in a module that the command line can import."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import proxrl
from proxrl.bonus.api import Stream
from proxrl.ppo import gae


class Auxiliary(proxrl.Learner):
    """Predicts the reward from the features, counts the rows that it was given, and pays for the squared first observation."""

    terms = ("auxiliary", "norm")
    sees_features = True

    def __init__(self, setup: Any, coef: float = 1.0) -> None:
        super().__init__()
        self.world, self.coef = setup.world, coef
        self.layer = nn.Linear(setup.feature_size, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def reward(self, rollout: Any, now: Any) -> Any:
        self.rewards = torch.from_numpy(rollout.reward.reshape(-1))
        steps = torch.tensor(rollout.steps)
        self.world.sum_(steps)
        self.seen += steps
        return 0.1 * np.tanh(rollout.obs[:-1, :, 0]) ** 2

    def loss(self, batch: Any, features: Any) -> dict[str, Tensor]:
        assert features.shape[0] == len(batch.weight) == len(batch.obs)
        error = self.layer(features).squeeze(1) - self.rewards[batch.rows]
        return {"auxiliary": self.coef * batch.mean(error**2), "norm": batch.mean(features.detach().square().sum(1))}

    def metrics(self) -> dict[str, float]:
        return {"bonus/seen": int(self.seen)}


class Apart(proxrl.Learner):
    """Learns something of its own, which does not need the policy; two terms share their graph."""

    terms = ("apart", "again")

    def __init__(self, setup: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, batch: Any, features: Any) -> dict[str, Tensor]:
        assert batch.obs is None
        assert features is None
        difference = (self.weight - batch.target[:, 0]) ** 2
        return {"apart": batch.mean(difference), "again": 0.5 * batch.mean(difference)}


class OwnStream(proxrl.Learner):
    """A bonus with a value stream."""

    def __init__(self, setup: Any) -> None:
        super().__init__()

    def stream(self, now: Any) -> Stream:
        return Stream(0.9, 0.8, coef=0.5, episodic=False)

    def reward(self, rollout: Any, now: Any) -> float:
        return 0.25


class HoldsTheValue(proxrl.Learner):
    """Holds the last layer of the value, before others have added streams to it."""

    def __init__(self, setup: Any) -> None:
        super().__init__()
        self.value = setup.policy.value


class Wrong(proxrl.Learner):
    """A learner with one fault."""

    terms: Any = ("mine",)

    def __init__(self, setup: Any, fault: str) -> None:
        super().__init__()
        self.fault, self.layer, self.calls = fault, nn.Linear(2, 1), 0
        terms = {"one name": "mine", "taken": ("entropy",), "unnamed": ()}
        self.terms = terms.get(fault, self.terms)
        if fault == "double":
            self.layer.double()

    def stream(self, now: Any) -> Any:
        self.calls += 1
        streams = {"stream": 3, "changing": Stream(0.9, 0.9) if self.calls == 1 else None}
        return streams.get(self.fault)

    def reward(self, rollout: Any, now: Any) -> Any:
        rewards = {
            "shape": np.zeros(3),
            "nan": np.full(rollout.reward.shape, np.nan),
            "nothing": None,
            "gradient": self.layer.bias,
        }
        return rewards.get(self.fault, 0.0)

    def loss(self, batch: Any, features: Any) -> Any:
        loss = self.layer.weight.sum()
        losses = {"list": [loss], "missing": {}, "other": {"mine": loss, "yours": loss}, "column": {"mine": batch.weight}}
        losses |= {"number": {"mine": 1.0}, "infinite": {"mine": loss / 0}, "none": None}
        if self.fault == "raises":
            raise KeyError("oops")
        return losses.get(self.fault, {"mine": loss})

    def metrics(self) -> Any:
        return {"mine": "abc"} if self.fault == "metric" else {}


def doubled(*arguments: Any, factor: float = 2.0) -> Any:
    """Twice the advantages of generalized advantage estimation, in double precision; writes to its arguments."""
    result = factor * gae(*arguments)
    arguments[1][:] = 7
    return result.astype(np.float64) if isinstance(result, np.ndarray) else result.double()


def wrong_estimate(reward: Any, *_: Any, fault: str = "shape") -> Any:
    if fault == "raises":
        raise KeyError("oops")
    return {"shape": reward[:-1], "nan": reward / 0, "none": None, "text": "abc"}[fault]


def few_arguments(reward: Any) -> Any:
    return reward
