"""Callbacks: which methods are called and when, what they may hold, and what a resumed run restores."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxrl
from commands import assert_same_checkpoint, saved
from harness import ThreadWorld, assemble, run_ranks
from info_envs import Goals
from proxrl import ppo
from proxrl.build import trainee
from proxrl.callback import Callback, check_hooks, overrides
from proxrl.config import Config
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.log.console import Console
from proxrl.runs import checkpoint
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder
from proxrl.session import Observers, Session

TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 48, "hidden_sizes": (8,),
    "tensorboard": False, "quiet": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Everything(Callback):
    """Records its calls; `fails` names a method that raises."""

    def __init__(self, fails: str = "", stop_at: int | None = None) -> None:
        self.fails, self.stop_at = fails, stop_at
        self.calls: list[str] = []

    def call(self, method: str, text: Any) -> None:
        self.calls.append(f"{method} {text}")
        if method == self.fails:
            raise KeyError("oops")

    def on_start(self, session: Any) -> None:
        self.call("on_start", session.step)

    def on_step(self, session: Any, step: Any, t: int) -> None:
        assert step.obs.shape == (2, 2)
        assert step.info.shape == (2, 1)
        self.call("on_step", f"{t} {step.info[0, 0]:g} {len(step.episodes)}")
        session.stop_requested |= session.step + t == self.stop_at

    def on_rollout(self, session: Any, rollout: Any) -> None:
        self.call("on_rollout", session.iteration)

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        self.call("on_iteration", session.iteration)

    def on_end(self, session: Any) -> None:
        self.call("on_end", f"{session.state} {session.folder.checkpoint_step()}")


def test_every_method_is_called_in_its_place() -> None:
    callback = Everything()
    proxrl.train("info_envs:Goals", callbacks=[callback], log_info=("speed",), **TINY)
    speeds = iter([10 * k + t for k in range(8) for t in (1, 2, 3)])
    expected = ["on_start 0"]
    for iteration in range(3):
        expected += [f"on_step {t} {(speed := next(speeds)):g} {2 * (speed % 10 == 3)}" for t in range(8)]
        expected += [f"on_rollout {iteration}", f"on_iteration {iteration + 1}"]
    assert callback.calls == [*expected, "on_end finished 48"]


@pytest.mark.parametrize("method", ["on_start", "on_step", "on_rollout", "on_iteration", "on_end"])
def test_an_error_names_the_method_and_on_end_is_still_called(method: str) -> None:
    callback, witness = Everything(fails=method), Everything()
    with pytest.raises(ProxRLError, match=rf"^Everything.{method} failed: KeyError: 'oops' \(--debug shows where\)$"):
        proxrl.train("info_envs:Goals", callbacks=[witness, callback], log_info=("speed",), **TINY)
    outcome = "on_end finished 48" if method == "on_end" else "on_end failed None"  # nothing had been saved yet
    assert [call for call in witness.calls if "on_end" in call] == [outcome]
    assert callback.calls[-1] == outcome
    assert RunFolder(Path("runs/info_envs-Goals/ppo/seed1")).read_status()["state"] == outcome.split()[1]


def test_a_step_may_request_the_end_of_the_run() -> None:
    callback = Everything(stop_at=3)
    result = proxrl.train("info_envs:Goals", callbacks=[callback], log_info=("speed",), **TINY)
    assert (result.step, result.finished) == (16, False)  # at the end of the iteration
    assert callback.calls[-1] == "on_end stopped 16"


class Plain:
    """No subclass of `Callback`, and with one method only."""

    def __init__(self) -> None:
        self.iterations = 0

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        self.iterations += 1


def test_any_object_with_one_of_the_methods_is_a_callback() -> None:
    plain = Plain()
    proxrl.train("info_envs:Goals", callbacks=[plain, Callback()], **TINY)
    assert plain.iterations == 3
    assert not overrides(plain, "on_step")
    assert not overrides(Callback(), "on_step")
    assert overrides(Everything(), "on_step")


def test_steps_are_only_watched_for_callbacks_with_on_step() -> None:
    watched: list[int] = []

    class Look(Callback):
        def on_end(self, session: Any) -> None:
            watched.append(len(session.parts.collector.watchers))

    for callbacks in ([Plain()], [Everything(), Everything()]):
        proxrl.train("info_envs:Goals", callbacks=[Look(), *callbacks], log_info=("speed",), clobber=True, **TINY)
    assert watched == [1, 3]  # one of them records the info


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["on_itteration"], "with a method on_itteration, which would never be called; did you mean on_iteration?"),
        (["_on_step"], "did you mean on_step?"),  # of Stable-Baselines3
        (["on_rollout_end"], "did you mean on_rollout?"),
        (["on_training_end"], "did you mean on_end?"),
        (["on_step", "on_qqqq"], "callbacks have on_start, on_step, on_rollout, on_iteration, on_end"),
        (["on_step", "state_dict"], "with state_dict, but without load_state_dict"),
        (["on_step", "load_state_dict"], "with load_state_dict, but without state_dict"),
    ],
)
@pytest.mark.parametrize("base", [object, Callback])
def test_misspelled_and_half_callbacks_are_rejected(methods: list[str], words: str, base: type) -> None:
    body = dict.fromkeys(methods, lambda *_: None)
    with pytest.raises(ProxRLError) as refusal:
        check_hooks(type("Mine", (base,), body)(), "callbacks holds")
    assert str(refusal.value).startswith("callbacks holds a Mine ")
    assert words in str(refusal.value)


# --- state ------------------------------------------------------------------------------------------------------------------


class Tally(Callback):
    """Sums what it sees, in every type that a state may hold."""

    def __init__(self, extra: Any = None) -> None:
        self.total, self.array, self.tensor = 0.0, np.zeros((2, 3)), torch.zeros(2, dtype=torch.float64)
        self.history: list[dict[str, Any]] = []
        self.extra, self.restored = extra, 0

    def on_rollout(self, session: Any, rollout: Any) -> None:
        noise = float(rollout.action.sum()) / 3 + session.world.rank
        self.total += noise
        self.array += np.sqrt(noise)
        self.tensor *= 0.9
        self.tensor += noise
        self.history.append({"step": session.step, "noise": np.float32(noise), "rows": [np.arange(session.iteration)]})
        rollout.reward += 0.01 * self.total  # so that what is learned depends on the state

    def state_dict(self) -> dict[str, Any]:
        names = ("total", "array", "tensor", "history", "extra")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored += 1
        for name, value in state.items():
            setattr(self, name, value)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        session.stop_requested = session.step >= self.step


def test_a_resumed_run_continues_with_the_state_of_its_callbacks_bit_for_bit() -> None:
    # Episodes of 8 steps end with the rollout, and both runs save at the same steps.
    train = functools.partial(proxrl.train, "info_envs:Goals", env_kwargs={"length": 8, "key": "goal"}, **TINY)
    straight = [Tally(), Tally("second")]
    one = train(name="straight", callbacks=straight)
    train(name="resumed", callbacks=[Tally(), Tally("second"), StopAt(16)])
    resumed = [Tally(), Tally("fresh")]
    two = train(name="resumed", callbacks=resumed)
    assert [tally.restored for tally in resumed] == [1, 1]
    assert [tally.extra for tally in resumed] == [None, "second"]
    for ours, theirs in zip(straight, resumed, strict=True):
        assert ours.total == theirs.total != 0
        assert isinstance(theirs.array, np.ndarray)
        np.testing.assert_array_equal(ours.array, theirs.array, strict=True)
        assert torch.equal(ours.tensor, theirs.tensor)
        assert theirs.tensor.dtype == torch.float64
        np.testing.assert_equal(ours.history, theirs.history)
    assert_same_checkpoint(one.path, two.path)
    assert any(name.startswith("callback.0.Tally-2.array") for name in saved(two.path)[0])
    proxrl.load(two.path)  # the tensors of callbacks are not mistaken for weights


def test_the_saved_state_is_that_of_its_own_step() -> None:
    """A checkpoint of the best policy is written later, when the state has changed."""
    tally = Tally()
    result = proxrl.train("info_envs:Goals", callbacks=[tally], **{**TINY, "total_steps": 160})
    state = saved(result.path, "best")[1]
    history = state["callbacks"][0]["Tally"]["history"]
    assert len(history) == state["iteration"] < len(tally.history) == 10


def test_callbacks_and_states_that_do_not_match_are_told_or_start_anew(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**TINY, "quiet": False}
    proxrl.train("info_envs:Goals", callbacks=[Tally()], **settings)
    proxrl.train("info_envs:Goals", **{**settings, "total_steps": 64})
    assert "the saved state of Tally is not used, because that callback was not given\n" in capsys.readouterr().out
    late = Tally()
    result = proxrl.train("info_envs:Goals", callbacks=[late], **{**settings, "total_steps": 80})
    assert (late.restored, len(late.history)) == (0, 1)
    # Checkpoints of earlier versions have no states.
    path = result.path / "checkpoints" / "latest.safetensors"
    tensors, state = checkpoint.load(path)
    del state["callbacks"]
    checkpoint.save(path, {name: tensor for name, tensor in tensors.items() if not name.startswith("callback")}, state)
    older = Tally()
    assert proxrl.train("info_envs:Goals", callbacks=[older], **{**settings, "total_steps": 96}).step == 96
    assert older.restored == 0


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({1, 2}, "callback..Tally.extra is a set, which can't be saved; a state may hold numbers, text, None, arrays, tensors"),
        ({"a": [{3: 4}]}, "callback..Tally.extra.a.0 has the key 3, but the keys of a saved dict must be text"),
        (np.array(["a"]), "callback..Tally.extra is an array of <U1, which can't be saved"),
        (torch.ones(2) * 1j, "callback..Tally.extra is an array of torch.complex64, which can't be saved"),
    ],
)
def test_a_state_that_can_not_be_saved_is_an_error_before_training(extra: Any, words: str) -> None:
    with pytest.raises(ProxRLError) as refusal:
        proxrl.train("info_envs:Goals", callbacks=[tally := Tally(extra)], **TINY)
    assert "Tally.state_dict failed: TypeError: " in str(refusal.value)
    assert words in str(refusal.value)
    assert tally.history == []


def test_each_rank_has_its_own_state(tmp_path: Path) -> None:
    config = Config(num_envs=2, rollout_steps=8, num_minibatches=2, total_steps=16)
    folder = RunFolder(tmp_path)

    def train(world: ThreadWorld, total_steps: int) -> Tally:
        longer = dataclasses.replace(config, total_steps=total_steps)
        parts = assemble(longer, InProcessEnvs([Goals]), world, first_env=world.rank)
        tally = Tally()
        observers = Observers([], Console(32, quiet=True), lambda _: Scores((0.0,), (1,)), [tally])
        saved = folder.load_latest() if world.rank == 0 else None
        session = Session(longer, world, trainee(parts), folder, observers, saved)  # type: ignore[arg-type]
        ppo.train(parts, session)
        session.save_latest("finished")
        return tally

    before = run_ranks(2, lambda world: train(world, 16))
    after = run_ranks(2, lambda world: train(world, 32))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_equal(one.history, other.history[:1])
        assert len(other.history) == 2
    assert after[0].history != after[1].history
    # With another number of ranks, all continue with the state of the first.
    (alone,) = run_ranks(1, lambda world: train_alone(world, folder))
    assert alone.total == after[0].total


def train_alone(world: ThreadWorld, folder: RunFolder) -> Tally:
    config = Config(num_envs=2, rollout_steps=8, num_minibatches=2, total_steps=32)
    parts, tally = assemble(config, InProcessEnvs([Goals, Goals]), world), Tally()
    observers = Observers([], Console(32, quiet=True), lambda _: Scores((0.0,), (1,)), [tally])
    Session(config, world, trainee(parts), folder, observers, folder.load_latest())  # type: ignore[arg-type]
    return tally
