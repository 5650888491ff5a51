"""User code inside the training loop: `--callback my_module:MyCallback`, or `proxrl.train(..., callbacks=[MyCallback()])`."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from proxrl.errors import ProxRLError, attribute_errors
from proxrl.runs.state_tree import pack
from proxrl.types import Rollout, Step

if TYPE_CHECKING:
    from proxrl.session import Session

HOOKS = ("on_start", "on_step", "on_rollout", "on_iteration", "on_end")
STATE = ("state_dict", "load_state_dict")
# Names in Stable-Baselines3.
OTHER_NAMES = {
    "_on_training_start": "on_start",
    "_on_step": "on_step",
    "_on_rollout_end": "on_rollout",
    "_on_training_end": "on_end",
    "on_training_start": "on_start",
    "on_rollout_end": "on_rollout",
    "on_training_end": "on_end",
}


class Callback:
    """Override the methods you need. An object of any other class with some of these methods is a callback too.

    `session` has the counters (`step`, `iteration`), the recent episodes, and `parts`, everything that is being trained. Setting
    `session.stop_requested = True` in any method saves and ends the run after the current iteration.
    """

    def on_start(self, session: "Session") -> None:
        """Called once before the first rollout, after the state of a resumed run was restored."""

    def on_step(self, session: "Session", step: Step, t: int) -> None:
        """Called after every step of the environments, only if it is overridden: it takes time in the innermost loop.

        `step` is the result of the actions, with one row for each environment of this rank; `t` counts the steps of the rollout
        from 0. Rows whose `step.valid` is False are dummy steps. The arrays must not be changed, and are overwritten by the next
        step. In the last step of a run, some environments may be past the step budget.
        """

    def on_rollout(self, session: "Session", rollout: Rollout) -> None:
        """Called after collection, before the update. Change only `rollout.reward` [T, N], which the update learns from: if
        policy and value share their network, log-probabilities and values were computed while acting, so changes to actions or
        observations would be ignored.
        """

    def on_iteration(self, session: "Session", metrics: dict[str, float]) -> None:
        """Called at the end of every iteration. Numbers added to `metrics` are logged with the others."""

    def on_end(self, session: "Session") -> None:
        """Called once at the end, however the run ends. `session.state` is "finished", "stopped" (by Ctrl-C, another signal or a
        callback) or "failed". Unless it failed, the run has been saved before.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume: numbers, text, None, arrays, tensors, and lists or dicts of these.

        Called at every save, and once at the start.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned when the checkpoint was saved. Called before `on_start`, if a run is resumed."""


def overrides(callback: object, method: str) -> bool:
    """Return whether a callback has a method of its own, not that of `Callback`, which does nothing."""
    own = getattr(callback, method, None)
    return callable(own) and getattr(own, "__func__", own) is not getattr(Callback, method)


def check_hooks(callback: object, source: str) -> None:
    """Raise a `ProxRLError` if an object would never be called, or not by all the names that it expects."""
    name = f"{source} a {type(callback).__name__}"
    for method in dir(callback):
        is_hook = method.startswith("on_") or method in OTHER_NAMES
        if is_hook and method not in HOOKS and callable(getattr(callback, method, None)):
            known = [OTHER_NAMES[method]] if method in OTHER_NAMES else difflib.get_close_matches(method, HOOKS, n=1, cutoff=0.6)
            advice = f"did you mean {known[0]}?" if known else f"callbacks have {', '.join(HOOKS)}"
            raise ProxRLError(f"{name} with a method {method}, which would never be called; {advice}")
    if not any(overrides(callback, method) for method in HOOKS) and not isinstance(callback, Callback):
        raise ProxRLError(f"{name}, which has no method of a callback; it needs one of {', '.join(HOOKS)}")
    present = [method for method in STATE if overrides(callback, method)]
    if len(present) == 1:
        missing = next(method for method in STATE if method not in present)
        raise ProxRLError(f"{name} with {present[0]}, but without {missing}; a state needs both to be saved and restored")


class CallbackList:
    """The callbacks of a session, each called by those of its methods that it overrides."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = list(callbacks)

    def having(self, method: str) -> list[Any]:
        return [callback for callback in self.callbacks if overrides(callback, method)]

    def call(self, method: str, *arguments: Any) -> None:
        for callback in self.having(method):
            with attribute_errors(callback, method):
                getattr(callback, method)(*arguments)

    def _stateful(self) -> dict[str, Any]:
        """Return the callbacks that have a state, by their names in checkpoints: that of the class, and a number if several
        callbacks share it.
        """
        named: dict[str, Any] = {}
        for callback in self.having("state_dict"):
            name = type(callback).__name__
            count = sum(type(other).__name__ == name for other in named.values())
            named[f"{name}-{count + 1}" if count else name] = callback
        return named

    def state(self, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return copies of the states: their arrays and tensors, with names below `prefix`, and the rest as JSON stores it."""
        tensors: dict[str, Tensor] = {}
        states = {}
        for name, callback in self._stateful().items():
            with attribute_errors(callback, "state_dict"):
                states[name] = pack(callback.state_dict(), f"{prefix}.{name}", tensors)
        return tensors, states

    def restore(self, states: dict[str, Any]) -> list[str]:
        """Restore unpacked states by name; return the names of those whose callback is missing."""
        stateful = self._stateful()
        for name in states.keys() & stateful.keys():
            with attribute_errors(stateful[name], "load_state_dict"):
                stateful[name].load_state_dict(states[name])
        return sorted(states.keys() - stateful.keys())
