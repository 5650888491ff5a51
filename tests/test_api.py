"""The Python interface: `import proxrl`."""

import dataclasses
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import proxrl
from commands import metrics
from odd_envs import Odd, make_short

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_steps": 16,
    "num_minibatches": 2,
    "hidden_sizes": (8,),
    "total_steps": 64,
    "quiet": True,
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_load_act_evaluate() -> None:
    result = proxrl.train("CartPole-v1", **SMALL)
    assert result.path == Path("runs/CartPole-v1/ppo/seed1")
    assert (result.step, result.finished, result.signal) == (64, True, None)
    assert isinstance(result.mean_return, float)
    agent = proxrl.load(result.path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        obs, *_ = env.step(agent.act(obs))
    scores = proxrl.evaluate(result.path, episodes=4)
    assert scores.keys() == {"deterministic", "stochastic"}
    assert len(scores["deterministic"].returns) == 4
    assert scores["deterministic"].mean == np.mean(scores["deterministic"].returns)
    assert proxrl.evaluate(agent, episodes=4) == scores


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
def test_environments_from_functions_and_lambdas(vector: str) -> None:
    result = proxrl.train(make_short, env_kwargs={"limit": 5}, vector=vector, num_workers=1, **SMALL)
    assert metrics(result.path)[-1]["charts/episodic_length"] <= 5
    limit = 3
    result = proxrl.train(lambda: make_short(limit), vector=vector, num_workers=1, **SMALL)
    assert metrics(result.path)[-1]["charts/episodic_length"] <= 3


def test_evaluating_a_run_of_a_callable() -> None:
    named = proxrl.train(make_short, **SMALL)
    assert max(proxrl.evaluate(named.path, episodes=4)["stochastic"].lengths) <= 7  # imported by its name
    unnamed = proxrl.train(lambda: make_short(3), **SMALL)
    with pytest.raises(proxrl.ProxRLError, match="env=callable"):
        proxrl.evaluate(unnamed.path)
    scores = proxrl.evaluate(unnamed.path, episodes=4, env=lambda: make_short(3))
    assert max(scores["stochastic"].lengths) <= 3


def test_an_environment_from_a_class() -> None:
    assert proxrl.train(Odd, **SMALL).mean_return == 20.0


def test_keyword_arguments_of_the_environment_are_stored() -> None:
    result = proxrl.train("Pendulum-v1", env_kwargs={"g": 0.0}, **SMALL)
    assert proxrl.load(result.path).config.env_kwargs == {"g": 0.0}


def test_training_in_a_thread_does_not_change_signal_handlers() -> None:
    results: list[proxrl.Result] = []
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: results.append(proxrl.train("CartPole-v1", **SMALL)))
    thread.start()
    thread.join()
    assert results[0].finished
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_several_runs_in_one_process() -> None:
    before = signal.getsignal(signal.SIGINT)
    results = [proxrl.train("CartPole-v1", seed=seed, **SMALL) for seed in (0, 1)]
    assert [result.path.name for result in results] == ["seed0", "seed1"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_can_start_after_another_has_failed() -> None:
    with pytest.raises(proxrl.ProxRLError, match="failed in step"):
        proxrl.train(Odd, env_kwargs={"fault": "step"}, **SMALL)
    assert proxrl.train(Odd, **SMALL).finished


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_env": 3}, "no setting 'num_env'"),
        ({"num_envs": "four"}, "--num-envs is 'four'"),
        ({"normalize_rewards": "maybe"}, "true or false"),
        ({"gamma": True}, "--gamma is True"),
        ({"vector": "sideways"}, "--vector is 'sideways'"),
        ({"env_kwargs": {"callback": print}}, "callback"),
        ({"env_kwargs": {"render_mode": None}}, "leave it out"),
        ({"env_kwargs": "g=1"}, "key=value"),
        ({"preset": "fancy"}, "no preset 'fancy'"),
        ({"adaptive_learning_rate": 0.01, "epochs": 1, "num_minibatches": 1}, "several steps per update"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(proxrl.ProxRLError, match=words) as caught:
        proxrl.train("CartPole-v1", **settings)
    assert "\n" not in str(caught.value)
    assert list(Path.cwd().iterdir()) == []


def test_numpy_numbers_are_accepted() -> None:
    config = proxrl.load(proxrl.train("CartPole-v1", **{**SMALL, "seed": np.int64(3), "gamma": np.float64(0.9)}).path).config
    assert (config.seed, config.gamma) == (3, 0.9)


def test_config_is_read_only() -> None:
    config = proxrl.Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5  # type: ignore[misc]
    assert config.replace(gamma=0.5).gamma == 0.5
    assert config.gamma == 0.99


def test_a_config_is_complete() -> None:
    options = {name: SMALL[name] for name in SMALL if name != "quiet"}
    config = proxrl.Config(env="Pendulum-v1", **options)  # the preset of Pendulum has other values
    result = proxrl.train(config, seed=2, quiet=True)
    trained = proxrl.load(result.path).config
    assert trained == config.replace(seed=2, vector="inprocess")
    assert proxrl.train(config=config, seed=2, quiet=True).step == result.step, "resumed"
    own = proxrl.train(make_short, config=config, quiet=True)
    assert proxrl.load(own.path).config == config.replace(env="odd_envs:make_short", vector="inprocess")
    with pytest.raises(proxrl.ProxRLError, match="preset 'classic' would have no effect"):
        proxrl.train(config, preset="classic")
    with pytest.raises(proxrl.ProxRLError, match="two configs"):
        proxrl.train(config, config=config)
    with pytest.raises(proxrl.ProxRLError, match=r"--gamma is 2\.0"):
        proxrl.train(config.replace(gamma=2.0))


class Interrupting(proxrl.Callback):
    def on_iteration(self, session: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_returns_the_result_in_an_interactive_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        proxrl.train("CartPole-v1", callbacks=[Interrupting()], **SMALL)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    result = proxrl.train("CartPole-v1", callbacks=[Interrupting()], name="prompt", **SMALL)
    assert (result.step, result.finished, result.signal) == (32, False, signal.SIGINT)
    assert proxrl.train("CartPole-v1", name="prompt", **SMALL).finished, "the same call resumes"
    monkeypatch.delattr(sys, "ps1")
    notebook = SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "IPython", notebook)  # type: ignore[arg-type]
    assert not proxrl.train("CartPole-v1", callbacks=[Interrupting()], name="notebook", **SMALL).finished


@pytest.mark.parametrize("name", ["😀", "a\x7fb", "ü 1"])
def test_unusual_names_are_stored_and_loaded(name: str) -> None:
    result = proxrl.train("CartPole-v1", name=name, **SMALL)
    assert proxrl.load(result.path).config.name == name


def test_importing_proxrl_does_not_import_torch() -> None:
    code = "import sys, proxrl; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_network_defined_in_a_script_is_reported_as_such(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import proxrl\nfrom torch import nn\n"
        "def encoder(space):\n    return nn.Linear(4, 8)\n"
        "print(proxrl.train('CartPole-v1', encoder=encoder, total_steps=256, num_envs=2).path)\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Next: proxrl.evaluate('runs/CartPole-v1/ppo/seed1') from Python" in done.stdout + done.stderr
    with pytest.raises(proxrl.ProxRLError, match=r"__main__:encoder was defined in a script.*define it in a module"):
        proxrl.load(tmp_path / "runs/CartPole-v1/ppo/seed1")


class TwoSided(Odd):
    observation_space = spaces.Dict(
        seen=spaces.Box(-1, 1, (2,), np.float32), place=spaces.Discrete(3, start=4), luck=spaces.Box(0, 1, (), np.float32)
    )

    def observe(self, number: float = 0.0) -> Any:
        return {"seen": np.zeros(2, np.float32), "place": 5, "luck": np.float32(0.5)}


def test_an_agent_acts_without_the_keys_of_its_critic() -> None:
    result = proxrl.train(TwoSided, actor_keys=["seen"], **SMALL)
    agent = proxrl.load(result.path)
    for rows in ((), (3,)):
        seen = np.ones((*rows, 2), np.float32)
        whole = {"seen": seen, "place": np.full(rows, 6), "luck": np.ones(rows, np.float32)}
        assert np.array_equal(agent.act({"seen": seen}), agent.act(whole))
    with pytest.raises(proxrl.ProxRLError, match="KeyError: 'seen'"):
        agent.act({"place": 5, "luck": 0.5})


class MaskedTwoSided(TwoSided):
    observation_space = spaces.Dict({**TwoSided.observation_space.spaces, "action_mask": spaces.MultiBinary(2)})

    def observe(self, number: float = 0.0) -> Any:
        return {**super().observe(number), "action_mask": np.array([0, 1], np.int8)}


def test_a_masked_agent_with_one_key_acts_without_the_keys_of_its_critic() -> None:
    agent = proxrl.load(proxrl.train(MaskedTwoSided, actor_keys=["seen"], **SMALL).path)
    seen, mask = np.ones(2, np.float32), np.array([0, 1], np.int8)
    assert agent.act({"seen": seen, "action_mask": mask}) == agent.act({"seen": seen}, mask=mask) == 1


class Doubled(proxrl.Callback):
    def on_rollout(self, session: Any, rollout: Any) -> None:
        rollout.reward = rollout.reward.astype(np.float64) * 2


def test_a_callback_may_replace_rewards_by_double_precision() -> None:
    doubled = proxrl.train("CartPole-v1", callbacks=[Doubled()], name="doubled", **SMALL)
    scaled = proxrl.train("CartPole-v1", reward_scale=2.0, name="scaled", **SMALL)
    assert metrics(doubled.path) == metrics(scaled.path)
