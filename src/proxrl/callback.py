"""User code inside the training loop: `--callback my_module:MyCallback`, or `proxrl.train(..., callbacks=[MyCallback()])`."""

from typing import TYPE_CHECKING

from proxrl.types import Rollout

if TYPE_CHECKING:
    from proxrl.session import Session


class Callback:
    """Override the methods you need.

    `session` has the counters (`step`, `iteration`), the recent episodes, and `parts`, everything that is being trained. Setting
    `session.stop_requested = True` saves and ends the run after the current iteration.
    """

    def on_rollout(self, session: "Session", rollout: Rollout) -> None:
        """Called after collection, before the update. Change only `rollout.reward` [T, N], which the update learns from: if
        policy and value share their network, log-probabilities and values were computed while acting, so changes to actions or
        observations would be ignored.
        """

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        """Called at the end of every iteration. Numbers added to `metrics` are logged with the others."""
