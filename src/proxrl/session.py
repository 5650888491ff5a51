"""What surrounds the algorithm while it runs: counters, metrics, evaluations, checkpoints, and requests to stop.

A session knows nothing of networks or optimizers, and passes rollouts on to callbacks without looking into them. The training
loop gives it counts, episodes, metrics, and named tensors to save and restore.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxrl.callback import Callback, CallbackList
from proxrl.collect.collector import StepWatcher
from proxrl.collect.info import InfoMetrics
from proxrl.common.numbers import format_number
from proxrl.config import Config
from proxrl.envs.spaces import space_difference, space_from_json, space_to_json
from proxrl.errors import CollectiveError, ProxRLError, attribute_errors
from proxrl.log.activity import Activity
from proxrl.log.api import Display, Logger
from proxrl.runs import checkpoint
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder, RunState
from proxrl.runs.metrics import MEAN_RETURN
from proxrl.runs.state_tree import unpack
from proxrl.runs.stop_rules import StopRules, best_by
from proxrl.types import Episode, Progress, Rollout, Step
from proxrl.world.api import World

# The training return is the mean over this many episodes; fewer than `ENOUGH` are too few to call it a best.
WINDOW, ENOUGH = 100, 20
# A kill that can't be caught loses at most this much.
SECONDS_BETWEEN_SAVES = 60.0
# The most that status.json lags behind a running job.
SECONDS_BETWEEN_STATUSES = 5.0
# What the names of tensors in a checkpoint begin with, if they belong to the state of a callback.
CALLBACK_PREFIX = "callback."

# A checkpoint in memory: its tensors and its state.
Saved: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True)
class Trainee:
    """What an engine trains, as the session sees it."""

    tensors: Callable[[], dict[str, Tensor]]  # everything that learns, by name
    restore: Callable[[dict[str, Tensor]], None]  # takes the same tensors, after their values were replaced
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    parts: Any  # the engine's own objects, for callbacks
    activity: Activity = field(default_factory=Activity)  # what the engine is doing, for the display
    info_names: Callable[[], list[str]] = list  # the keys of info that hold numbers


def _capture_nothing(session: "Session") -> None:
    pass


@dataclass(frozen=True)
class Observers:
    """Who watches a run: loggers and the display get numbers, callbacks may change it, `evaluate` plays episodes."""

    loggers: Sequence[Logger]
    display: Display
    evaluate: Callable[[int], Scores]
    callbacks: Sequence[Callback] = ()
    capture: "Callable[[Session], None]" = _capture_nothing


class Session:
    """One process's part of a run: from the start or a checkpoint to the end of the step budget or a stop.

    Counters, episodes and everything that learns are the same on all ranks; rank 0 alone writes files.
    """

    def __init__(
        self, config: Config, world: World, trainee: Trainee, folder: RunFolder, observers: Observers, saved: Saved | None
    ) -> None:
        self.config, self.world, self.trainee, self.folder, self.observers = config, world, trainee, folder, observers
        self.parts, self.activity = trainee.parts, trainee.activity
        self.callbacks = CallbackList(observers.callbacks)
        self.info = InfoMetrics(config.log_info or (), trainee.info_names)
        self.state: RunState = "running"
        self.step = self.iteration = 0
        self.episode_counts: Sequence[int] | None = None  # begun so far by each environment of all ranks
        self.recent: deque[Episode] = deque(maxlen=WINDOW)
        self.best_return: float | None = None
        self.best_snapshot: Saved | None = None
        self.stop_requested = False  # by a signal or a callback, on this rank
        self.stopping = False  # on all ranks
        self.saved_at = self.status_at = time.monotonic()
        self.saved_step = -1
        self.rules = StopRules()
        self._restore(saved)
        self.finished_by = self.rules.reason(config)  # the rule that ended the run before its step budget was spent
        self.stopping = self.finished_by is not None

    @property
    def display(self) -> Display:
        return self.observers.display

    @property
    def loggers(self) -> Sequence[Logger]:
        return self.observers.loggers

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last episodes, 100 at most; None before the first one has finished."""
        return float(np.mean([episode.total_reward for episode in self.recent])) if self.recent else None

    @property
    def success_rate(self) -> float | None:
        """The share of successes among the last episodes, 100 at most; None if no info of theirs told (see `Episode.success`)."""
        return success_rate(self.recent)

    @property
    def mean_length(self) -> float | None:
        """The mean length of the same episodes."""
        return float(np.mean([episode.length for episode in self.recent])) if self.recent else None

    def request_stop(self) -> None:
        """Save and end the run after the current iteration."""
        self.stop_requested = True

    # --- called around the training loop --------------------------------------------------------------------------------------

    def call_on_start(self) -> None:
        """Call the callbacks before the first rollout."""
        self.callbacks.call("on_start", self)
        self.callbacks.state(CALLBACK_PREFIX)  # an error in it should not wait for the first save

    def call_on_end(self) -> None:
        """Call the callbacks after the last iteration, when everything is saved."""
        self.callbacks.call("on_end", self)

    def step_watchers(self) -> list[StepWatcher]:
        """Return what is to be called after every step of the environments: the callbacks with `on_step`."""

        def watcher(callback: Any) -> StepWatcher:
            def watch(t: int, step: Step) -> None:
                with attribute_errors(callback, "on_step"):
                    callback.on_step(self, step, t)

            return watch

        return [watcher(callback) for callback in self.callbacks.having("on_step")]

    # --- called by the training loop -----------------------------------------------------------------------------------------

    def call_on_rollout(self, rollout: Rollout) -> None:
        """Call the callbacks after collection, before the update. They may change the rewards."""
        self.activity.begin("calling callbacks")
        self.callbacks.call("on_rollout", self, rollout)
        self.activity.begin("learning")

    def report(self, progress: Progress, metrics: dict[str, float]) -> None:
        """End an iteration: count it, log it, and evaluate and save when it is time to."""
        before, spent = self.step, self.activity.lap()
        self.iteration += 1
        episodes, info = self._count(progress)
        charts: dict[str, float] = {}
        if episodes:
            charts["charts/episodic_return"] = float(np.mean([episode.total_reward for episode in episodes]))
            charts["charts/episodic_length"] = float(np.mean([episode.length for episode in episodes]))
        rate = success_rate(episodes)
        if rate is not None:
            charts["charts/success_rate"] = rate
        self._evaluate_and_update_best(before, charts)
        self.finished_by = self.rules.reason(self.config)
        self.display.update(self.step, self.mean_return, self.best_return, self.mean_length, self.success_rate, spent, metrics)
        charts |= {} if self.mean_return is None else {MEAN_RETURN: self.mean_return}
        charts["charts/SPS"] = self.display.steps_per_second
        charts |= {f"charts/share_{name}": share for name, share in spent.shares().items() if name != "other"}
        self._log({**charts, **metrics, **self.info.means(info)})
        due = bool(episodes) or self.step >= self.config.planned_steps
        for line in [*self.info.warnings(due), *self.rules.warnings(self.config)]:
            self.display.message(line)
        if _crossed(self.config.capture_video, self.iteration - 1, self.iteration):
            self.activity.begin("recording a video")
            self.observers.capture(self)
        keep = _crossed(self.config.save_every, before, self.step)
        if self._agree_to_stop_or_save() or keep:
            self.save_latest("running", keep)
        elif time.monotonic() - self.status_at > SECONDS_BETWEEN_STATUSES:
            self.write_status("running")

    # --- counters and metrics -----------------------------------------------------------------------------------------------

    def _count(self, progress: Progress) -> tuple[list[Episode], NDArray[np.float64]]:
        """Add what all ranks did to the counters; return the episodes that they finished, and the sums of `Progress.info`."""
        steps, all_episodes, all_counts, infos = zip(*self.world.gather(tuple(progress)), strict=True)
        self.step += sum(steps)
        self.episode_counts = [count for part in all_counts for count in part]
        # In order of time, as one rank would find them.
        finished = sorted((episode for part in all_episodes for episode in part), key=lambda episode: (episode.step, episode.env))
        self.recent.extend(finished)
        return finished, np.sum(infos, axis=0)

    def _log(self, metrics: dict[str, float]) -> None:
        for callback in self.callbacks.having("on_iteration"):
            with attribute_errors(callback, "on_iteration"):
                callback.on_iteration(self, metrics)
            wrong = [name for name, value in metrics.items() if not isinstance(value, Real)]
            if wrong:
                entry = f"{wrong[0]!r} = {metrics[wrong[0]]!r}"
                raise ProxRLError(f"{type(callback).__name__}.on_iteration left {entry} in the metrics; they must be numbers")
        for logger in self.loggers:
            with attribute_errors(logger, "log"):
                logger.log(self.step, metrics)

    def _evaluate_and_update_best(self, before: int, charts: dict[str, float]) -> None:
        """Evaluate if it is time to, and record a new best: by evaluation if the run evaluates, otherwise by training return."""
        score: float | None = None
        successes = self.success_rate
        if self.config.eval_every is not None:
            if _crossed(self.config.eval_every, before, self.step) or self.step >= self.config.planned_steps:
                scores = self.observers.evaluate(self.step)
                score, successes = scores.mean, scores.success_rate
                charts["eval/episodic_return"] = score
                charts["eval/episodic_length"] = float(np.mean(scores.lengths))
                if scores.success_rate is not None:
                    charts["eval/success_rate"] = scores.success_rate
                success = "" if scores.success_rate is None else f", success rate {scores.success_rate:.0%}"
                where = f" in {self.config.evaluated_in}" if self.config.evaluated_in else ""
                spread = f"{format_number(score)} ± {format_number(scores.deviation)}"
                self.display.message(f"step {self.step:,}: evaluation return{where} {spread}{success}")
        elif len(self.recent) >= ENOUGH:
            score = self.mean_return
        if score is not None:
            self.rules.observe(self.step, score, successes, self.config.plateau_tolerance)
        if score is not None and (self.best_return is None or score > self.best_return):
            self.best_return = score
            tensors, state = self._snapshot()
            if self.world.rank == 0:
                # A copy in memory is cheap, a synced file is not: it is written with the next save.
                self.best_snapshot = {name: tensor.clone() for name, tensor in tensors.items()}, state

    def _agree_to_stop_or_save(self) -> bool:
        """Stop all ranks if one wants to, since none can train alone; return whether rank 0's clock says it is time to save."""
        due = self.world.rank == 0 and time.monotonic() - self.saved_at > SECONDS_BETWEEN_SAVES
        votes = torch.tensor([bool(self.stop_requested or self.finished_by), due], dtype=torch.int32)
        self.world.sum_(votes)
        self.stopping = bool(votes[0])
        return bool(votes[1])

    # --- checkpoints --------------------------------------------------------------------------------------------------------

    def save_latest(self, state: RunState, keep: bool = False) -> None:
        """Write `step-<n>` if `keep`, which later saves do not replace, then `best`, `latest` and the status.

        Every file is replaced atomically. `latest` comes after the other two, because a resumed run continues from it: if it were
        written first, a kill before the others would leave a step that is never saved, or a best return without its policy.
        """
        self.activity.begin("saving")
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

    def write_status(self, state: RunState) -> None:
        self.status_at, self.state = time.monotonic(), state
        if self.world.rank == 0:
            scores = self.mean_return, self.best_return, self.success_rate
            self.folder.write_status(state, self.step, self.config.planned_steps, *scores, self.finished_by)

    def _write(self, name: str, snapshot: Saved) -> None:
        if self.world.rank == 0:
            checkpoint.save(self.folder.checkpoint_path(name), *snapshot)

    def _verified_snapshot(self) -> Saved:
        """Return what is to be saved, after checking that all ranks have learned the same."""
        tensors, state = self._snapshot()
        digests = self.world.gather(checkpoint.digest(tensors))
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise CollectiveError(
                f"at step {self.step:,} rank {different[0]} has other parameters than rank 0, though both took the same steps;"
                " check that their hosts compute alike. The last good checkpoint is untouched"
            )
        return tensors, state

    def _snapshot(self) -> Saved:
        """Return what a checkpoint holds. All ranks must call it, because each has callbacks of its own."""
        states = self.world.gather(self.callbacks.state(f"{CALLBACK_PREFIX}{self.world.rank}"))
        state = {
            "step": self.step,
            "iteration": self.iteration,
            "episode_counts": list(self.episode_counts or []),
            "recent": [list(episode) for episode in self.recent],
            "best_return": self.best_return,
            "best_by": best_by(self.config),
            "stop_rules": self.rules.state(),
            "observation_space": space_to_json(self.trainee.observation_space),
            "action_space": space_to_json(self.trainee.action_space),
            "callbacks": [by_name for _, by_name in states],
        }
        tensors = self.trainee.tensors()
        for callback_tensors, _ in states:
            tensors |= callback_tensors
        return tensors, state

    def _restore(self, saved: Saved | None) -> None:
        """Start all ranks from rank 0's parameters, and from its checkpoint if it has one. Random streams need no restoring: they
        are addressed by iteration and episode.
        """
        tensors = self.trainee.tensors()
        for name, tensor in learned_tensors(saved[0] if saved else {}).items():
            tensors[name].copy_(tensor)
        for tensor in tensors.values():
            self.world.broadcast_(tensor)
        self.trainee.restore(tensors)
        states_of_callbacks = unpack(saved[1].get("callbacks", []), saved[0]) if saved else []
        state, states_of_callbacks = self.world.gather((saved and saved[1], states_of_callbacks))[0]
        if state is None:
            return
        self._restore_callbacks(states_of_callbacks)
        self.step, self.iteration = state["step"], state["iteration"]
        self.episode_counts = state["episode_counts"] or None
        self.recent.extend(Episode(*episode) for episode in state["recent"])
        # Returns of training and of evaluations in different environments can't be compared: a run that changes between them
        # looks for a new best.
        self.best_return = state["best_return"] if state["best_by"] == best_by(self.config) else None
        self.rules = StopRules.restored(state, self.config)
        self.saved_step = self.step

    def _restore_callbacks(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore the states of this rank's callbacks, or those of rank 0 if the number of ranks has changed."""
        if not states:  # a checkpoint of an earlier version
            return
        own = states[self.world.rank if len(states) == self.world.size else 0]
        missing = self.callbacks.restore(own)
        if missing:
            self.display.message(f"the saved state of {', '.join(missing)} is not used, because that callback was not given")


def learned_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint without those of callbacks."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(CALLBACK_PREFIX)}


def check_restorable(trainee: Trainee, folder: RunFolder, saved: Saved) -> None:
    """Refuse the checkpoint of another environment or other networks."""
    tensors, state = saved
    spaces = (space_from_json(state[kind]) for kind in ("observation_space", "action_space"))
    difference = space_difference(trainee, *spaces)
    if difference is not None:
        raise ProxRLError(f"{difference} (run folder {folder.path}); use another --name, or --clobber to start over")
    if {name: tensor.shape for name, tensor in trainee.tensors().items()} != {
        name: tensor.shape for name, tensor in learned_tensors(tensors).items()
    }:
        raise ProxRLError(
            f"the checkpoint in {folder.path} does not fit the networks; has the code of your custom networks changed?"
            " Use another --name, or --clobber to start over"
        )


def success_rate(episodes: Iterable[Episode]) -> float | None:
    """Return the share of successes among the episodes whose info told; None if none did."""
    known = [episode.success for episode in episodes if episode.success is not None]
    return sum(known) / len(known) if known else None


def _crossed(every: int | None, before: int, now: int) -> bool:
    """Return whether a multiple of `every` was reached between two counts."""
    return every is not None and before // every < now // every
