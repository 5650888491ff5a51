"""What surrounds the algorithm while it runs: counters, metrics, evaluations, checkpoints, and the wish to stop."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import torch

from proxrl import checkpoint
from proxrl.build import Parts
from proxrl.callback import Callback
from proxrl.errors import ProxRLError
from proxrl.evaluation import Scores
from proxrl.imports import one_line
from proxrl.log.api import Display, Logger
from proxrl.runs import RunFolder
from proxrl.spaces import same_form, space_from_json, space_to_json
from proxrl.types import Episode, Rollout

# Training return is the mean over this many episodes; fewer than `ENOUGH` say too little to call a best.
WINDOW, ENOUGH = 100, 20
# A kill that can't be caught loses at most this much.
SECONDS_BETWEEN_SAVES = 60.0


class Session:
    """One process's part of a run: from the start or a checkpoint to the end of the budget or a stop."""

    def __init__(
        self,
        parts: Parts,
        folder: RunFolder,
        loggers: Sequence[Logger],
        display: Display,
        evaluate: Callable[[int], Scores],
        saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.parts, self.folder, self.loggers, self.display, self.evaluate = parts, folder, loggers, display, evaluate
        self.callbacks = callbacks
        self.step = self.iteration = 0
        self.episode_counts: Sequence[int] | None = None
        self.recent: deque[Episode] = deque(maxlen=WINDOW)
        self.best_return: float | None = None
        self.best_snapshot: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        self.stop_requested = False
        self.saved_at = time.monotonic()
        self.saved_step = -1
        if saved is not None:
            self._restore(*saved)

    @property
    def mean_return(self) -> float | None:
        return float(np.mean([episode.total_reward for episode in self.recent])) if self.recent else None

    @property
    def _best_by(self) -> str:
        return "training" if self.parts.config.eval_every is None else "evaluation"

    def collected(self, rollout: Rollout) -> None:
        """A rollout is there, and nothing has been learnt from it yet."""
        for callback in self.callbacks:
            with told(callback, "on_rollout"):
                callback.on_rollout(self, rollout)
        if self.callbacks and np.shape(rollout.reward) != rollout.valid.shape:
            shapes = f"{np.shape(rollout.reward)}, but must have {rollout.valid.shape}"
            raise ProxRLError(f"a callback left rewards of shape {shapes}; nothing was learnt from this rollout")
        if self.callbacks and not np.isfinite(rollout.reward).all():
            raise ProxRLError("a callback left rewards that are not finite numbers; nothing was learnt from this rollout")

    def report(self, rollout: Rollout, metrics: dict[str, float]) -> None:
        """An iteration is over: count it, log it, and evaluate and save if it is time to."""
        before = self.step
        steps = torch.tensor(rollout.steps)
        self.parts.world.sum_(steps)
        self.step += int(steps)
        self.iteration += 1
        # An episode that has begun but not moved yet is begun again by a resumed run, so it does not count.
        self.episode_counts = (self.parts.environments.episode_counts - rollout.starts[-1]).tolist()
        episodes = [episode for part in self.parts.world.gather(rollout.episodes) for episode in part]
        self.recent.extend(episodes)
        self.display.update(self.step, self.mean_return, self.best_return)
        charts = {"charts/SPS": self.display.steps_per_second}
        if episodes:
            charts["charts/episodic_return"] = float(np.mean([episode.total_reward for episode in episodes]))
            charts["charts/episodic_length"] = float(np.mean([episode.length for episode in episodes]))
        self._consider_best(before, charts)
        metrics = {**charts, **metrics}
        for callback in self.callbacks:
            with told(callback, "on_iteration"):
                callback.on_iteration(self, metrics)
            odd = [name for name, value in metrics.items() if not isinstance(value, Real)]
            if odd:
                what = f"{odd[0]!r} = {metrics[odd[0]]!r}"
                raise ProxRLError(f"{type(callback).__name__}.on_iteration left {what} in the metrics; they must be numbers")
        for logger in self.loggers:
            with told(logger, "log"):
                logger.log(self.step, metrics)
        config = self.parts.config
        if _crossed(config.save_every, before, self.step):
            self.save(f"step-{self.step}")
        if time.monotonic() - self.saved_at > SECONDS_BETWEEN_SAVES or _crossed(config.save_every, before, self.step):
            self.save_latest("running")

    def _consider_best(self, before: int, charts: dict[str, float]) -> None:
        """Best by evaluation where the run evaluates, by training return where it does not."""
        config = self.parts.config
        score: float | None = None
        if config.eval_every is not None:
            if _crossed(config.eval_every, before, self.step) or self.step >= config.planned_steps:
                scores = self.evaluate(self.step)
                score = scores.mean
                charts["eval/episodic_return"] = score
                charts["eval/episodic_length"] = float(np.mean(scores.lengths))
                self.display.message(f"step {self.step:,}: evaluation return {score:.1f} ± {scores.deviation:.1f}")
        elif len(self.recent) >= ENOUGH:
            score = self.mean_return
        if score is not None and (self.best_return is None or score > self.best_return):
            self.best_return = score
            # A copy in memory is cheap, a synced file is not: it goes to disk with the next save.
            tensors, state = self._snapshot()
            self.best_snapshot = {name: tensor.clone() for name, tensor in tensors.items()}, state

    def save_latest(self, state: Any) -> None:
        """Write best, then latest, then the status: whatever interrupts this, what is on disk is whole."""
        if self.best_snapshot is not None:
            checkpoint.save(self.folder.checkpoint_path("best"), *self.best_snapshot)
            self.best_snapshot = None
        if self.saved_step != self.step:
            self.save("latest")
            self.saved_step = self.step
        self.folder.write_status(state, self.step, self.parts.config.planned_steps)
        self.saved_at = time.monotonic()

    def save(self, name: str) -> None:
        checkpoint.save(self.folder.checkpoint_path(name), *self._snapshot())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Everything that learns; the tensors themselves, so that restoring copies into them."""
        policy = {f"policy.{name}": tensor for name, tensor in self.parts.policy.state_dict().items()}
        rewards = {f"rewards.{name}": tensor for name, tensor in self.parts.reward_scaler.state_dict().items()}
        steering = {f"steering.{name}": tensor for name, tensor in self.parts.steering.state_dict().items()}
        return policy | rewards | steering | self.parts.optimizer.tensors()

    def _snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        environments = self.parts.environments
        state = {
            "step": self.step,
            "iteration": self.iteration,
            "episode_counts": list(self.episode_counts or []),
            "recent": [list(episode) for episode in self.recent],
            "best_return": self.best_return,
            "best_by": self._best_by,
            "observation_space": space_to_json(environments.observation_space),
            "action_space": space_to_json(environments.action_space),
        }
        return self._tensors(), state

    def _restore(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Go on as if nothing had happened. Random streams need no restoring: they are addressed by iteration and episode."""
        for kind in ("observation_space", "action_space"):
            now, then = getattr(self.parts.environments, kind), space_from_json(state[kind])
            if not same_form(now, then):
                label = kind.replace("_", " ")
                raise ProxRLError(
                    f"the environment's {label} is {now}, but the run in {self.folder.path} was begun with {then};"
                    " use another --name, or --clobber to start over"
                )
        ours = self._tensors()
        if {name: tensor.shape for name, tensor in ours.items()} != {name: tensor.shape for name, tensor in tensors.items()}:
            raise ProxRLError(
                f"the checkpoint in {self.folder.path} belongs to other networks or spaces: has the environment changed?"
                " Use another --name, or --clobber to start over"
            )
        for name, tensor in ours.items():
            tensor.copy_(tensors[name])
        self.step, self.iteration = state["step"], state["iteration"]
        self.episode_counts = state["episode_counts"] or None
        self.recent.extend(Episode(*episode) for episode in state["recent"])
        # Returns of evaluations and of training can't be compared: a run that changes between them looks for a new best.
        self.best_return = state["best_return"] if state["best_by"] == self._best_by else None
        self.saved_step = self.step


@contextmanager
def told(part: object, call: str) -> Iterator[None]:
    """An error in a part that may be the user's own says whose it is."""
    try:
        yield
    except ProxRLError:
        raise
    except Exception as error:
        raise ProxRLError(f"{type(part).__name__}.{call} failed: {one_line(error)} (--debug shows where)") from error


def _crossed(every: int | None, before: int, now: int) -> bool:
    """Whether a multiple of `every` was reached between two step counts."""
    return every is not None and before // every < now // every
