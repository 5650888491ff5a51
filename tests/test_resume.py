"""A run that was stopped and resumed equals one that was not; and the contents of checkpoints."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxrl
from commands import assert_same_checkpoint, metrics, saved, steps
from proxrl.cli import main
from proxrl.runs import checkpoint
from proxrl.runs.folder import RunFolder
from proxrl.session import Session

# Every episode of Pendulum has 200 steps, so it ends with the rollout. Everything that has a state to restore is on.
ALIGNED: dict[str, Any] = {
    "num_envs": 2,
    "rollout_steps": 200,
    "num_minibatches": 4,
    "epochs": 2,
    "hidden_sizes": (16, 16),
    "total_steps": 2400,
    "normalize_observations": True,
    "normalize_rewards": True,
    "anneal_learning_rate": True,
    "quiet": True,
}
SMALL: dict[str, Any] = {"num_envs": 2, "rollout_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,), "quiet": True}


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes sessions stop at a step, as a signal would."""
    report = Session.report

    def set_step(step: int | None) -> None:
        def stopping(session: Session, *arguments: Any) -> None:
            report(session, *arguments)
            session.stopping = step is not None and session.step >= step

        monkeypatch.setattr(Session, "report", stopping)

    return set_step


# Each has additional state to restore, or another way to begin rollouts.
SETTINGS_WITH_STATE: list[dict[str, Any]] = [
    {"kl_coef": 1.0, "adaptive_kl": 0.01, "adaptive_learning_rate": 0.01},
    {"optimizer": "sgd", "value_optimizer": "rmsprop", "value_epochs": 3, "value_learning_rate": 1e-3},
    {"action_distribution": "beta", "trunk": "shared", "accumulate": 2},
    {"noise": "gsde", "noise_interval": 7, "log_std_init": -2, "rpo_alpha": 0.3},
    {"resets": "hard", "max_episode_steps": 130, "learning_starts": 500},
    {"memory": "lstm", "memory_size": 8, "sequence_length": 40},
    {"resets": "hard", "vector": "workers", "num_workers": 2, "max_episode_steps": 40},
    {"bonus": ("icm", "rnd"), "rnd_coef": "linear:1:0.5"},
    {"learner": ["learners:Auxiliary", "coef=0.5", "learners:OwnStream"], "advantage": ["learners:doubled", "factor=1.5"]},
]


@pytest.mark.parametrize(
    "settings",
    [{}, {"compute": "autograd"}, {"vector": "workers", "num_workers": 1}, {"eval_every": 800}, *SETTINGS_WITH_STATE],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(settings: dict[str, Any], stop_at: Any) -> None:
    train = functools.partial(proxrl.train, "Pendulum-v1", **{**ALIGNED, **settings})
    straight = train(name="straight")
    assert (straight.finished, straight.step) == (True, 2400)
    stop_at(1200)
    half = train(name="resumed")
    assert (half.finished, half.step) == (False, 1200)
    assert steps(half.path) == [400, 800, 1200]
    stop_at(None)
    resumed = train(name="resumed")
    assert (resumed.finished, resumed.step) == (True, 2400)
    assert_same_checkpoint(straight.path, resumed.path)
    assert metrics(straight.path) == metrics(resumed.path)
    assert resumed.mean_return == straight.mean_return
    if settings.get("eval_every"):
        assert_same_checkpoint(straight.path, resumed.path, "best")


def test_resume_after_every_iteration(stop_at: Any) -> None:
    straight = proxrl.train("Pendulum-v1", **ALIGNED, name="straight")
    for step in range(400, 2001, 400):
        stop_at(step)
        assert proxrl.train("Pendulum-v1", **ALIGNED, name="resumed").step == step
    stop_at(None)
    resumed = proxrl.train("Pendulum-v1", **ALIGNED, name="resumed")
    assert_same_checkpoint(straight.path, resumed.path)


def test_the_same_seed_gives_the_same_run_and_another_seed_a_different_one() -> None:
    one, two = (proxrl.train("CartPole-v1", **SMALL, total_steps=640, name=name) for name in ("one", "two"))
    assert metrics(one.path) == metrics(two.path)
    assert_same_checkpoint(one.path, two.path)
    other = proxrl.train("CartPole-v1", **SMALL, total_steps=640, seed=2)
    assert metrics(other.path) != metrics(one.path)


def test_worker_processes_change_nothing() -> None:
    one, two = (
        proxrl.train("CartPole-v1", **SMALL, total_steps=640, name=vector, vector=vector) for vector in ("inprocess", "workers")
    )
    assert_same_checkpoint(one.path, two.path)
    assert metrics(one.path) == metrics(two.path)


def test_evaluations_and_saves_do_not_change_training() -> None:
    plain = proxrl.train("CartPole-v1", **SMALL, total_steps=640, name="plain")
    busy = proxrl.train("CartPole-v1", **SMALL, total_steps=640, name="busy", eval_every=64, save_every=64, tensorboard=False)
    for name, tensor in saved(plain.path)[0].items():
        assert torch.equal(tensor, saved(busy.path)[0][name])


def test_a_larger_total_continues_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**SMALL, "quiet": False}
    proxrl.train("CartPole-v1", **settings, total_steps=128)
    (curve,) = re.findall("^return .* to .*", capsys.readouterr().out, re.MULTILINE)
    result = proxrl.train("CartPole-v1", **settings, total_steps=128)
    printed = capsys.readouterr().out
    assert "Already done" in printed
    assert f"\n{curve}\n" in printed  # the same one, of means over 100 episodes
    assert (result.step, result.finished) == (128, True)
    result = proxrl.train("CartPole-v1", **settings, total_steps=256, eval_every=64, save_every=128, eval_episodes=2)
    assert (result.step, result.finished) == (256, True)
    assert "Resuming at step 128" in capsys.readouterr().out
    assert steps(result.path) == [64, 128, 192, 256]
    shorter = proxrl.train("CartPole-v1", **settings, total_steps=64)
    assert (shorter.step, shorter.finished) == (256, True)  # steps that were trained are not lost


def test_clobber_starts_over() -> None:
    first = proxrl.train("CartPole-v1", **SMALL, total_steps=256)
    again = proxrl.train("CartPole-v1", **SMALL, total_steps=128, learning_rate=0.01, clobber=True)
    assert first.path == again.path
    assert steps(again.path) == [64, 128]
    assert len(list(again.path.glob("events*"))) == 1
    assert saved(again.path)[1]["step"] == 128


def test_best_by_training_return() -> None:
    result = proxrl.train("CartPole-v1", **SMALL, total_steps=6400)
    state = saved(result.path, "best")[1]
    assert state["best_return"] == result.best_return
    assert np.mean([episode[1] for episode in state["recent"]]) == result.best_return
    assert result.mean_return is not None
    assert result.best_return is not None
    assert result.best_return >= result.mean_return


def test_best_by_evaluation() -> None:
    result = proxrl.train("CartPole-v1", **SMALL, total_steps=1280, learning_rate=0.01, eval_every=320, eval_episodes=4)
    evaluations = {line["step"]: line["eval/episodic_return"] for line in metrics(result.path) if "eval/episodic_return" in line}
    assert list(evaluations) == [320, 640, 960, 1280]
    best = max(evaluations, key=lambda step: evaluations[step])
    assert saved(result.path, "best")[1]["step"] == best
    assert result.best_return == evaluations[best]


def test_save_every_keeps_checkpoints_of_intermediate_steps() -> None:
    result = proxrl.train("CartPole-v1", **SMALL, total_steps=640, save_every=200)
    names = sorted(path.stem for path in (result.path / "checkpoints").iterdir())
    assert names == ["best", "latest", "step-256", "step-448", "step-640"]
    for step in (256, 448, 640):
        assert proxrl.load(result.path, f"step-{step}").step == saved(result.path, f"step-{step}")[1]["step"] == step


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_a_loaded_agent_acts_like_its_policy(compute: str) -> None:
    result = proxrl.train("Pendulum-v1", **{**ALIGNED, "total_steps": 400}, compute=compute)
    agent = proxrl.load(result.path)
    batch = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with torch.no_grad():
        distribution, _, _ = agent.policy(torch.from_numpy(batch), (), None)
    expected = np.clip(distribution.mode().numpy(), -2, 2)
    np.testing.assert_allclose(agent.act(batch), expected, rtol=1e-5, atol=1e-6)
    assert agent.act(batch[0]).shape == (1,)
    np.testing.assert_allclose(agent.act(batch[0]), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(agent.act(batch[0].tolist()), expected[0], rtol=1e-5, atol=1e-6)
    samples = np.array([agent.act(batch[0], deterministic=False) for _ in range(20)])
    assert samples.std() > 0.1
    assert agent.action_space.contains(samples[0])
    with pytest.raises(proxrl.ProxRLError, match=r"shape \(4,\), but this agent takes \(3,\)"):
        agent.act(np.zeros(4))
    with pytest.raises(proxrl.ProxRLError, match="shape"):
        agent.act(np.zeros((2, 2, 3)))


def test_a_discrete_action_is_a_number() -> None:
    agent = proxrl.load(proxrl.train("FrozenLake-v1", **SMALL, total_steps=64).path)
    assert agent.act(3) in range(4)
    assert agent.act(np.array([3, 4])).shape == (2,)


def test_evaluation_does_not_change_the_run() -> None:
    result = proxrl.train("Pendulum-v1", **{**ALIGNED, "total_steps": 400})
    before = {path: path.read_bytes() for path in result.path.rglob("*") if path.is_file()}
    agent = proxrl.load(result.path)
    weights = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    proxrl.evaluate(agent, episodes=2)
    assert main(["eval", str(result.path), "--episodes", "2"]) == 0
    (result.path / "evaluations.json").unlink()  # the only file that the command writes
    assert {path: path.read_bytes() for path in result.path.rglob("*") if path.is_file()} == before
    for name, tensor in agent.policy.state_dict().items():
        assert torch.equal(tensor, weights[name])


def test_a_resumed_run_keeps_its_vector_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a faster one has been installed since."""
    settings = {
        "num_envs": 2,
        "rollout_steps": 16,
        "num_minibatches": 2,
        "runs_dir": tmp_path,
        "quiet": True,
        "tensorboard": False,
    }
    proxrl.train("CartPole-v1", total_steps=32, **settings)
    monkeypatch.setattr("proxrl.config.resolve.choose_vector", lambda *_: "native")
    result = proxrl.train("CartPole-v1", total_steps=64, **settings)
    assert (result.step, RunFolder(result.path).config().vector) == (64, "inprocess")
    assert RunFolder(proxrl.train("CartPole-v1", total_steps=64, clobber=True, **settings).path).config().vector == "native"


def test_best_by_training_is_not_compared_with_best_by_evaluation(tmp_path: Path) -> None:
    settings = {
        "num_envs": 2,
        "rollout_steps": 128,
        "num_minibatches": 2,
        "runs_dir": tmp_path,
        "quiet": True,
        "tensorboard": False,
    }
    first = proxrl.train("CartPole-v1", total_steps=1024, eval_every=256, eval_episodes=2, **settings)
    assert first.best_return is not None
    path = first.path / "checkpoints/latest.safetensors"
    tensors, state = checkpoint.load(path)
    checkpoint.save(path, tensors, {**state, "best_return": 1e9})
    assert proxrl.train("CartPole-v1", total_steps=1280, eval_every=256, eval_episodes=2, **settings).best_return == 1e9
    by_training = proxrl.train("CartPole-v1", total_steps=1536, **settings).best_return
    assert by_training is not None
    assert by_training < 500
