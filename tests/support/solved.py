"""Runs that end when their task is solved."""

from pathlib import Path
from typing import Any

import numpy as np

import proxrl
from proxrl.session import Session


class UntilSolved(proxrl.Callback):
    """Ends a run when the mean return of its last 20 episodes reaches a threshold."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self.solved = threshold, False

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        returns = [episode.total_reward for episode in session.recent][-20:]
        self.solved = len(returns) == 20 and float(np.mean(returns)) >= self.threshold
        session.stop_requested |= self.solved


def solves(folder: Path, env: Any, threshold: float, **settings: Any) -> bool:
    """Train until the threshold is reached, and return whether it was, within the budget of the settings."""
    callback = UntilSolved(threshold)
    proxrl.train(env, **settings, callbacks=[callback], runs_dir=folder, quiet=True, tensorboard=False, clobber=True)
    return callback.solved
