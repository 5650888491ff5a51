"""Code of yours inside the training loop: `--callback my_module:MyCallback`, or `proxrl.train(..., callbacks=[MyCallback()])`."""

from typing import TYPE_CHECKING

from proxrl.types import Rollout

if TYPE_CHECKING:
    from proxrl.session import Session


class Callback:
    """Override what you need. `session` has the counters (`step`, `iteration`), the recent episodes, `parts` with everything that
    is being trained, and `stop_requested`, which set to True ends the run after this iteration, saved.
    """

    def on_rollout(self, session: "Session", rollout: Rollout) -> None:
        """Between rollout and update. What you change in the rollout, such as its rewards [T, N], is what is learnt from."""

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        """At the end of every iteration. What you add to the metrics is logged with them."""
