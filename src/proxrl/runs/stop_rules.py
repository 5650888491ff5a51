"""Rules that end a run before its step budget is spent: `--stop-at`, `--stop-at-success` and `--stop-plateau`."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from proxrl.common.numbers import format_number
from proxrl.config import Config
from proxrl.errors import ProxRLError


@dataclass
class StopRules:
    """What the rules need to know of a run. It is saved in checkpoints, so that a resumed run continues to count.

    The score is the mean return by which the best checkpoint is chosen: of the evaluation if the run evaluates, otherwise of the
    last training episodes.
    """

    step: int = 0  # of the latest score
    score: float | None = None
    success_rate: float | None = None  # of the same episodes
    first: float | None = None  # the first score
    improved: float | None = None  # the last score that was an improvement, and its step
    improved_step: int = 0
    warned: bool = False  # that --stop-at-success has nothing to go by

    def observe(self, step: int, score: float, success_rate: float | None, tolerance: float) -> None:
        """Take a new score. It is an improvement if it exceeds the last one by `tolerance` of all that was gained before."""
        self.step, self.score, self.success_rate = step, score, success_rate
        if self.first is None:
            self.first = score
        if self.improved is None or score > self.improved + tolerance * (self.improved - self.first):
            self.improved, self.improved_step = score, step

    def reason(self, config: Config) -> str | None:
        """Return which rule ends the run, or None."""
        if config.stop_at is not None and self.score is not None and self.score >= config.stop_at:
            return f"return {format_number(self.score)} has reached --stop-at {config.stop_at:g}"
        target = config.stop_at_success
        if target is not None and self.success_rate is not None and self.success_rate >= target:
            return f"success rate {self.success_rate:.0%} has reached --stop-at-success {target:g}"
        if config.stop_plateau is not None and self.step - self.improved_step >= config.stop_plateau:
            return f"no improvement since step {self.improved_step:,} (--stop-plateau {config.stop_plateau:,})"
        return None

    def warnings(self, config: Config) -> list[str]:
        """Return a line, once, if the rule about successes has a score to look at, but no episode told whether it succeeded."""
        if self.warned or config.stop_at_success is None or self.score is None or self.success_rate is not None:
            return []
        self.warned = True
        return ["--stop-at-success has no effect so far: no episode has had is_success or success in the info of its last step"]

    def state(self) -> dict[str, Any]:
        """Return this for the state of a checkpoint."""
        return asdict(self)

    @classmethod
    def restored(cls, checkpoint: dict[str, Any], config: Config) -> "StopRules":
        """Return the rules from the state of a checkpoint; checkpoints of earlier versions have nothing of them.

        If the score is of other episodes now, it starts anew, because the two can't be compared.
        """
        state = checkpoint.get("stop_rules", {}) if checkpoint.get("best_by") == best_by(config) else {}
        if not isinstance(state, dict):
            raise _not_understood(f"are {state!r}")
        known = [spec for spec in fields(cls) if spec.name in state]
        for spec in known:
            value = state[spec.name]
            if not isinstance(value, int | float) and not (value is None and spec.default is None):
                raise _not_understood(f"have {value!r} for {spec.name}")
        return cls(**{spec.name: state[spec.name] for spec in known})


def _not_understood(problem: str) -> ProxRLError:
    return ProxRLError(f"the stop rules in the checkpoint {problem}, so it can't be resumed; use another checkpoint of that run")


def best_by(config: Config) -> str:
    """Return which episodes the score is of, as checkpoints record it."""
    if config.eval_every is None:
        return "training"
    return f"evaluation in {config.evaluated_in}" if config.evaluated_in else "evaluation"
