"""Shared by tests of bonuses: settings, and episodes that end at different times."""

from typing import Any

from harness import NEVER
from proxrl.config import Config

SCRIPTS = (
    ((3, "terminated"), (2, "truncated")),
    ((4, "truncated"), (1, "terminated"), (1, "truncated")),
    (NEVER,),
    ((7, "terminated"),),
)


def curious_config(**changes: Any) -> Config:
    settings = {"num_envs": 4, "rollout_steps": 12, "num_minibatches": 2, "epochs": 2, "hidden_sizes": (8,), "gamma": 0.9}
    rest = {"total_steps": 144, "learning_rate": 0.01, "rnd_gamma": 0.8}
    return Config(**{**settings, **rest, **changes}).validate()
