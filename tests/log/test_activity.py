"""What a run is doing, as words, and where its time goes."""

import gymnasium
import pytest

from harness import InProcessEnvs, assemble, train
from proxrl.config import Config
from proxrl.log.activity import Activity, TimeSpent


class StoppedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_words() -> None:
    activity = Activity()
    assert str(activity) == "starting"
    activity.begin("collecting", 128)
    activity.done = 77
    assert str(activity) == "collecting 60%"
    with activity.during("compiling"):
        assert str(activity) == "compiling"
    assert str(activity) == "collecting 60%"
    activity.begin("learning")
    assert str(activity) == "learning"
    activity.begin("learning", 10)
    activity.done = 3
    assert str(activity) == "learning epoch 3 of 10"
    activity.begin("evaluating", 20)
    activity.add(2, 500)
    assert str(activity) == "evaluating, 2 of 20 episodes"


def test_a_lap_divides_the_time_since_the_last_one() -> None:
    clock = StoppedClock()
    activity = Activity(clock)
    for _ in range(2):
        for doing, seconds in (("collecting", 3.0), ("learning", 1.0), ("learning", 4.0), ("evaluating", 2.0)):
            activity.begin(doing)
            clock.now += seconds
        activity.environment_seconds += 2.5
        assert activity.lap() == pytest.approx((2.5, 0.5, 5.0, 2.0))
    assert TimeSpent(1.0, 2.0, 3.0, 4.0).plus(TimeSpent(0.0, 0.0, 5.0, 5.0)).shares() == {
        "environments": 0.05,
        "acting": 0.1,
        "learning": 0.4,
        "other": 0.45,
    }
    assert sum(TimeSpent().shares().values()) == 0


class Observer(gymnasium.Wrapper):
    """Notes what the display would show while the environment takes a step."""

    seen: list[str]
    activity: Activity

    def reset(self, **kwargs: object) -> tuple:
        self.seen.append(str(self.activity))
        return super().reset(**kwargs)

    def step(self, action: int) -> tuple:
        self.seen.append(str(self.activity))
        return super().step(action)


def test_the_training_loop_reports_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(env="CartPole-v1", num_envs=1, rollout_steps=4, num_minibatches=2, epochs=3, total_steps=8).validate()
    env = Observer(gymnasium.make("CartPole-v1"))
    parts = assemble(config, InProcessEnvs([lambda: env], 0))
    env.seen, env.activity = [], parts.activity
    step = parts.optimizer.step
    monkeypatch.setattr(parts.optimizer, "step", lambda *arguments: (env.seen.append(str(parts.activity)), step(*arguments)))
    train(parts, 1)
    assert env.seen == [
        "resetting the environments",
        *(f"collecting {percent}%" for percent in (0, 25, 50, 75)),
        *(f"learning epoch {epoch} of 3" for epoch in (1, 1, 2, 2, 3, 3)),
    ]
    environments, acting, learning, other = parts.activity.lap()
    assert min(environments, acting, learning, other) > 0
