"""What surrounds the algorithm while it runs: counters, metrics, evaluations, checkpoints, and the wish to stop."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from proxrl.build import Parts
from proxrl.callback import Callback
from proxrl.envs.spaces import same_form, space_from_json, space_to_json
from proxrl.errors import CollectiveError, ProxRLError, one_line
from proxrl.log.api import Display, Logger
from proxrl.runs import checkpoint
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder, RunState
from proxrl.types import Episode, Rollout

# Training return is the mean over this many episodes; fewer than `ENOUGH` say too little to call a best.
WINDOW, ENOUGH = 100, 20
# A kill that can't be caught loses at most this much.
SECONDS_BETWEEN_SAVES = 60.0
# Whoever looks at a running job sees numbers that are at most this old.
SECONDS_BETWEEN_STATUSES = 5.0


# A checkpoint as it was read: tensors and state.
Saved: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]


class Session:
    """One process's part of a run: from the start or a checkpoint to the end of the budget or a stop.

    Counters, episodes and everything that is learnt are the same on all ranks; the first rank alone writes.
    """

    def __init__(
        self,
        parts: Parts,
        folder: RunFolder,
        loggers: Sequence[Logger],
        display: Display,
        evaluate: Callable[[int], Scores],
        saved: Saved | None,
        callbacks: Sequence[Callback] = (),
        capture: "Callable[[Session], None]" = lambda session: None,  # noqa: ARG005 - the signature of what captures
    ) -> None:
        self.parts, self.folder, self.loggers, self.display, self.evaluate = parts, folder, loggers, display, evaluate
        self.callbacks, self.capture = callbacks, capture
        self.step = self.iteration = 0
        self.episode_counts: Sequence[int] | None = None
        self.recent: deque[Episode] = deque(maxlen=WINDOW)
        self.best_return: float | None = None
        self.best_snapshot: Saved | None = None
        self.stop_requested = False  # by a signal or a callback, on this rank
        self.stopping = False  # on all
        self.saved_at = self.told_at = time.monotonic()
        self.saved_step = -1
        self._begin(saved)

    def request_stop(self) -> None:
        self.stop_requested = True

    @property
    def mean_return(self) -> float | None:
        return float(np.mean([episode.total_reward for episode in self.recent])) if self.recent else None

    @property
    def _best_by(self) -> str:
        return "training" if self.parts.config.eval_every is None else "evaluation"

    def collected(self, rollout: Rollout) -> None:
        """A rollout is there, and nothing has been learnt from it yet."""
        for callback in self.callbacks:
            with attribute_errors(callback, "on_rollout"):
                callback.on_rollout(self, rollout)
        if self.callbacks and np.shape(rollout.reward) != rollout.valid.shape:
            shapes = f"{np.shape(rollout.reward)}, but must have {rollout.valid.shape}"
            raise ProxRLError(f"a callback left rewards of shape {shapes}; nothing was learnt from this rollout")
        if self.callbacks and not np.isfinite(rollout.reward).all():
            raise ProxRLError("a callback left rewards that are not finite numbers; nothing was learnt from this rollout")

    def report(self, rollout: Rollout, metrics: dict[str, float]) -> None:
        """An iteration is over: count it, log it, and evaluate and save if it is time to."""
        before = self.step
        self.iteration += 1
        episodes = self._count(rollout)
        self.display.update(self.step, self.mean_return, self.best_return)
        charts = {"charts/SPS": self.display.steps_per_second}
        if episodes:
            charts["charts/episodic_return"] = float(np.mean([episode.total_reward for episode in episodes]))
            charts["charts/episodic_length"] = float(np.mean([episode.length for episode in episodes]))
        self._consider_best(before, charts)
        metrics = {**charts, **metrics}
        for callback in self.callbacks:
            with attribute_errors(callback, "on_iteration"):
                callback.on_iteration(self, metrics)
            odd = [name for name, value in metrics.items() if not isinstance(value, Real)]
            if odd:
                what = f"{odd[0]!r} = {metrics[odd[0]]!r}"
                raise ProxRLError(f"{type(callback).__name__}.on_iteration left {what} in the metrics; they must be numbers")
        for logger in self.loggers:
            with attribute_errors(logger, "log"):
                logger.log(self.step, metrics)
        if _crossed(self.parts.config.capture_video, self.iteration - 1, self.iteration):
            self.capture(self)
        keep = _crossed(self.parts.config.save_every, before, self.step)
        if self._agree_to_stop_or_save() or keep:
            self.save_latest("running", keep)
        elif time.monotonic() - self.told_at > SECONDS_BETWEEN_STATUSES:
            self.write_status("running")

    def _count(self, rollout: Rollout) -> list[Episode]:
        """Take in what all ranks did; gives the episodes they finished."""
        first = self.parts.first_env
        # An episode that has begun but not moved yet is begun again by a resumed run, so it does not count.
        counts = (self.parts.environments.episode_counts - rollout.starts[-1]).tolist()
        episodes = [episode._replace(env=first + episode.env) for episode in rollout.episodes]
        steps, all_counts, all_episodes = zip(*self.parts.world.gather((rollout.steps, counts, episodes)), strict=True)
        self.step += sum(steps)
        self.episode_counts = [count for part in all_counts for count in part]
        # In the order of time, as one rank would find them.
        finished = sorted((episode for part in all_episodes for episode in part), key=lambda episode: (episode.step, episode.env))
        self.recent.extend(finished)
        return finished

    def _agree_to_stop_or_save(self) -> bool:
        """One rank's wish stops all, since none can train alone; the first rank's clock says whether it is time to save."""
        world = self.parts.world
        due = world.rank == 0 and time.monotonic() - self.saved_at > SECONDS_BETWEEN_SAVES
        wishes = torch.tensor([bool(self.stop_requested), due], dtype=torch.int32)
        world.sum_(wishes)
        self.stopping = bool(wishes[0])
        return bool(wishes[1])

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
            if self.parts.world.rank == 0:
                # A copy in memory is cheap, a synced file is not: it goes to disk with the next save.
                tensors, state = self._snapshot()
                self.best_snapshot = {name: tensor.clone() for name, tensor in tensors.items()}, state

    def save_latest(self, state: RunState, keep: bool = False) -> None:
        """Write best, then latest, then the status: whatever interrupts this, what is on disk is whole. `keep` writes one
        that later ones do not replace.
        """
        snapshot = self._verified_snapshot()
        if keep:
            self._write(f"step-{self.step}", snapshot)
        if self.best_snapshot is not None:
            self._write("best", self.best_snapshot)
            self.best_snapshot = None
        if self.saved_step != self.step:
            self._write("latest", snapshot)
            self.saved_step = self.step
        self.write_status(state)
        self.saved_at = time.monotonic()

    def _write(self, name: str, snapshot: Saved) -> None:
        if self.parts.world.rank == 0:
            checkpoint.save(self.folder.checkpoint_path(name), *snapshot)

    def _verified_snapshot(self) -> Saved:
        """What is to be saved, once it is certain that all ranks have learnt the same."""
        tensors, state = self._snapshot()
        digests = self.parts.world.gather(checkpoint.digest(tensors))
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if odd:
            raise CollectiveError(
                f"at step {self.step:,} rank {odd[0]} has other parameters than rank 0, though both took the same steps: do their"
                " hosts compute alike? The last good checkpoint is untouched"
            )
        return tensors, state

    def write_status(self, state: RunState) -> None:
        self.told_at = time.monotonic()
        if self.parts.world.rank == 0:
            self.folder.write_status(state, self.step, self.parts.config.planned_steps, self.mean_return, self.best_return)

    def _snapshot(self) -> Saved:
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
        return learned_tensors(self.parts), state

    def _begin(self, saved: Saved | None) -> None:
        """Begin with the first rank's parameters, and where it has a checkpoint go on from it as if nothing had happened. Random
        streams need no restoring: they are addressed by iteration and episode.
        """
        ours, world = learned_tensors(self.parts), self.parts.world
        for name, tensor in (saved[0] if saved else {}).items():
            ours[name].copy_(tensor)
        for tensor in ours.values():
            world.broadcast_(tensor)
        state = world.gather(saved and saved[1])[0]
        if state is None:
            return
        self.step, self.iteration = state["step"], state["iteration"]
        self.episode_counts = state["episode_counts"] or None
        self.recent.extend(Episode(*episode) for episode in state["recent"])
        # Returns of evaluations and of training can't be compared: a run that changes between them looks for a new best.
        self.best_return = state["best_return"] if state["best_by"] == self._best_by else None
        self.saved_step = self.step

    @property
    def own_episode_counts(self) -> Sequence[int] | None:
        """Of this rank's environments: episodes that they have begun in earlier sessions."""
        if self.episode_counts is None:
            return None
        first = self.parts.first_env
        return self.episode_counts[first : first + self.parts.environments.num_envs]


def learned_tensors(parts: Parts) -> dict[str, torch.Tensor]:
    """Everything that learns; the tensors themselves, so that restoring copies into them."""
    policy = {f"policy.{name}": tensor for name, tensor in parts.policy.state_dict().items()}
    rewards = {f"rewards.{name}": tensor for name, tensor in parts.reward_scaler.state_dict().items()}
    steering = {f"steering.{name}": tensor for name, tensor in parts.steering.state_dict().items()}
    return policy | rewards | steering | parts.optimizer.tensors()


def check_restorable(parts: Parts, path: Path, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Refuse the checkpoint of another environment or other networks."""
    for kind in ("observation_space", "action_space"):
        now, then = getattr(parts.environments, kind), space_from_json(state[kind])
        if not same_form(now, then):
            label = kind.replace("_", " ")
            raise ProxRLError(
                f"the environment's {label} is {now}, but the run in {path} was begun with {then};"
                " use another --name, or --clobber to start over"
            )
    ours = learned_tensors(parts)
    if {name: tensor.shape for name, tensor in ours.items()} != {name: tensor.shape for name, tensor in tensors.items()}:
        raise ProxRLError(
            f"the checkpoint in {path} belongs to other networks or spaces: has the environment changed?"
            " Use another --name, or --clobber to start over"
        )


@contextmanager
def attribute_errors(part: object, call: str) -> Iterator[None]:
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
