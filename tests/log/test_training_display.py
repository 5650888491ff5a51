"""What a training run tells its display."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxrl
from proxrl.callback import Callback
from proxrl.log.console import Console
from proxrl.session import Session

SETTINGS: dict[str, Any] = {"num_envs": 2, "rollout_steps": 64, "num_minibatches": 2, "epochs": 1, "hidden_sizes": (8,)}


class Recorder(Console):
    """Remembers every update, and what was being done at each of its messages."""

    updates: list[dict[str, Any]]
    doing: list[str]

    def update(self, step: int, *arguments: Any) -> None:  # type: ignore[override]
        names = "mean_return", "best_return", "mean_length", "success_rate", "spent", "metrics"
        self.updates.append({"step": step, **dict(zip(names, arguments, strict=True))})
        super().update(step, *arguments)

    def message(self, text: str) -> None:
        self.doing.append(str(self._activity))
        super().message(text)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proxrl.launch.Console", Recorder)
    Recorder.updates, Recorder.doing = [], []
    return Recorder


class Returns(Callback):
    """Notes the mean return after every iteration, and what the display would show meanwhile."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.doing: set[str] = set()

    def on_rollout(self, session: Session, rollout: object) -> None:
        self.doing.add(str(session.activity))

    def on_iteration(self, session: Session, metrics: dict[str, float]) -> None:
        assert session.mean_return is not None
        self.means.append(session.mean_return if len(session.recent) >= 20 else -np.inf)
        self.doing.add(str(session.activity))


def test_best_is_of_the_same_iteration_as_the_return(recorder: type[Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    returns = Returns()
    proxrl.train("CartPole-v1", total_steps=2048, callbacks=[returns], **SETTINGS)
    shown = [-np.inf if update["best_return"] is None else update["best_return"] for update in recorder.updates]
    assert shown == pytest.approx(np.maximum.accumulate(returns.means))
    assert shown[-1] > 0
    last = recorder.updates[-1]
    assert last["step"] == 2048
    assert last["mean_length"] == pytest.approx(last["mean_return"])  # CartPole gives 1 for every step
    assert min(last["spent"][:3]) > 0
    assert "losses/approx_kl" in last["metrics"]
    assert returns.doing == {"calling callbacks", "logging"}
    first = capsys.readouterr().out.splitlines()[-6].split()

    # A resumed run shows the whole curve.
    proxrl.train("CartPole-v1", total_steps=2176, **SETTINGS)
    curve = capsys.readouterr().out.splitlines()[-6].split()
    assert first[0] == curve[0] == "return"
    assert len(curve[1]) == len(first[1]) + 1 == 17


def test_evaluations_are_counted(recorder: type[Recorder]) -> None:
    proxrl.train("CartPole-v1", total_steps=128, eval_every=128, eval_episodes=6, **SETTINGS)
    assert recorder.doing == ["evaluating, 6 of 6 episodes"]


def test_compilation_is_reported() -> None:
    from torch._dynamo.callback import CallbackTrigger, callback_handler

    from proxrl.engine.compilation import reporting_compilation
    from proxrl.log.activity import Activity

    activity = Activity()
    activity.begin("collecting", 4)
    for compiled, expected in ((True, "compiling"), (False, "collecting 0%")):
        with reporting_compilation(compiled, activity):
            with callback_handler.install_callbacks(CallbackTrigger.DYNAMO, "0/0"):
                assert str(activity) == expected
            assert str(activity) == "collecting 0%"
    assert callback_handler.start_callbacks == callback_handler.end_callbacks == []
