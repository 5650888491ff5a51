"""A custom callback: code that runs at every step, between rollout and update, after every iteration, and at the end.

python examples/own_callback.py
proxrl train MountainCar-v0 --callback examples.own_callback:Momentum --callback-kwargs bonus=1 enough=-140
"""

import numpy as np

import proxrl
from proxrl.session import Session
from proxrl.types import Rollout, Step


class Momentum(proxrl.Callback):
    """Adds a bonus for speed to MountainCar's reward of -1 per step, logs it, and stops when the return is high enough."""

    def __init__(self, bonus: float, enough: float) -> None:
        self.bonus, self.enough = bonus, enough
        self.added = 0.0
        self.fastest = 0.0

    def on_step(self, session: Session, step: Step, t: int) -> None:
        """Called after every step of the environments: see docs/own_parts.md for all methods."""
        self.fastest = max(self.fastest, float(np.abs(step.obs[:, 1]).max()))

    def on_rollout(self, session: Session, rollout: Rollout) -> None:
        """Change the rewards [T, N] to learn from; returns are reported without it. Observations are position and speed."""
        added = self.bonus * np.abs(rollout.obs[:-1, :, 1]) / 0.07  # obs is [T + 1, N, 2]
        rollout.reward += added
        self.added = float(added.mean())

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        metrics["charts/bonus"], metrics["charts/fastest"] = self.added, self.fastest
        if session.mean_return is not None and session.mean_return > self.enough:
            session.stop_requested = True  # the run is saved and stops after this iteration

    def on_end(self, session: Session) -> None:
        print(f"{session.state} after {session.iteration} iterations; the highest speed was {self.fastest:.3f}")

    def state_dict(self) -> dict[str, float]:
        """Return what a resumed run needs to continue."""
        return {"fastest": self.fastest}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.fastest = state["fastest"]


if __name__ == "__main__":
    callback = Momentum(bonus=1.0, enough=-140.0)
    result = proxrl.train("MountainCar-v0", callbacks=[callback], total_steps=400_000, clobber=True)
    print(f"the mean bonus of the last iteration was {callback.added:.2f} per step")
    print(f"stopped at step {result.step} of 400000 with a return of {result.mean_return:.0f}")
