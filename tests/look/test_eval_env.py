"""Evaluation in another environment than that of training, and agents that stack observations themselves."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import proxrl
from commands import metrics, saved
from proxrl.build import build_environments
from proxrl.cli import main
from proxrl.common.tree import tree_map
from proxrl.config import Config
from proxrl.envs.given import GivenEnv
from proxrl.errors import ProxRLError
from proxrl.export.exporter import export_policy
from proxrl.look.eval_env import EvalEnv
from proxrl.runs.evaluations import current_evaluation, read_evaluations
from proxrl.runs.folder import RunFolder
from wrapped_envs import Album, Ticker, Wider

TINY: dict[str, Any] = {"num_envs": 2, "rollout_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 32, "eval_every": 16}
TINY |= {"hidden_sizes": (8,), "quiet": True, "tensorboard": False, "eval_episodes": 2}
SUM = 28.0  # of the rewards 1 to 7 of a Ticker


@pytest.fixture(autouse=True)
def work_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluations(run: Path) -> set[float]:
    return {line["eval/episodic_return"] for line in metrics(run) if "eval/episodic_return" in line}


def test_evaluations_during_training_are_in_the_other_environment(capsys: pytest.CaptureFixture[str]) -> None:
    env, settings = "wrapped_envs:Ticker", {**TINY, "env_kwargs": {"scale": 2.0}}
    changed = proxrl.train(env, **settings, eval_env_kwargs={"length": 3}, name="kwargs")
    assert evaluations(changed.path) == {2 * 6.0}  # the scale is still that of training
    assert {line["charts/episodic_return"] for line in metrics(changed.path) if "charts/episodic_return" in line} == {2 * SUM}
    named = proxrl.train(env, **settings, eval_env="wrapped_envs:Ticker", eval_env_kwargs={"length": 3, "scale": 1.0}, name="b")
    assert evaluations(named.path) == {6.0}
    called = proxrl.train(lambda **_: Ticker(), **settings, eval_env=lambda length: Ticker(length), eval_env_kwargs={"length": 2})
    assert evaluations(called.path) == {3.0}
    assert "<lambda>" in RunFolder(called.path).config().eval_env
    # Returns in different environments are not compared: a resumed run looks for a new best.
    assert saved(changed.path)[1]["best_return"] == 12.0
    again = proxrl.train(env, **{**settings, "total_steps": 48}, eval_env_kwargs={"length": 1}, name="kwargs")
    assert (again.step, again.best_return) == (48, 2.0)
    flags = [word for name in ("num-envs", "rollout-steps", "num-minibatches", "epochs") for word in (f"--{name}", "2")]
    flags += ["--total-steps", "4", "--eval-every", "4", "--eval-episodes", "1", "--name", "shown"]
    assert main(["train", env, *flags, "--eval-env", "wrapped_envs:Ticker", "--eval-env-kwargs", "length=4"]) == 0
    assert "evaluation return in wrapped_envs:Ticker (length=4) 10.0" in capsys.readouterr().out


def test_an_environment_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    for other, message in (
        (
            Wider,
            r"can't be evaluated in wrapped_envs:Wider: the environment's observation space is .*\(3,\).* trained with .*\(2,\)",
        ),
        ("CartPol-v1", "unknown environment 'CartPol-v1'; did you mean CartPole-v1"),
        ("no_such_module:env", "there is no module 'no_such_module'"),
    ):
        with pytest.raises(ProxRLError, match=message):
            proxrl.train(Ticker, **TINY, eval_env=other)
    for name in ("scale", "length"):  # an argument of training is not what the message is about
        with pytest.raises(ProxRLError, match=r"'wheels'.*; check --eval-env-kwargs wheels=3$"):
            proxrl.train("wrapped_envs:Ticker", **TINY, env_kwargs={name: 2}, eval_env_kwargs={"wheels": 3})
    for settings in ({"eval_env": "CartPole-v1"}, {"eval_env_kwargs": {"length": 3}}):
        with pytest.raises(ProxRLError, match="is for evaluations during training; give --eval-every N too"):
            proxrl.train(Ticker, **{**TINY, "eval_every": None}, **settings)
    assert not Path("runs").exists()


def test_scores_in_another_environment_are_saved_apart(capsys: pytest.CaptureFixture[str]) -> None:
    run = proxrl.train("wrapped_envs:Ticker", **{**TINY, "eval_every": None}, frame_stack=2, wrapper="wrapped_envs:Append").path
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["eval", str(run), "--episodes", "2", "--eval-env-kwargs", "length=4"]) == 0
    assert main(["eval", str(run), "--episodes", "2", "--eval-env", "wrapped_envs:Ticker", "--eval-env-kwargs", "length=2"]) == 0
    assert "return 3.00" in capsys.readouterr().out
    folder = RunFolder(run)
    means = {name: scores["deterministic"]["mean"] for name, scores in read_evaluations(folder).items()}
    own, changed, other = "latest", "latest in wrapped_envs:Ticker (length=4)", "latest in wrapped_envs:Ticker (length=2)"
    assert means == {own: SUM, changed: 10.0, other: 3.0}
    assert current_evaluation(folder)["deterministic"]["mean"] == SUM  # type: ignore[index]
    assert proxrl.evaluate(run, episodes=1, env=lambda: Ticker(3))["stochastic"].mean == 6.0
    assert proxrl.evaluate(run, episodes=1, env="wrapped_envs:Ticker", env_kwargs={"length": 1})["stochastic"].mean == 1.0
    assert main(["eval", str(run), "--eval-env-kwargs", "wheels=3"]) == 2
    assert capsys.readouterr().err.endswith("; check --eval-env-kwargs wheels=3\n")
    assert main(["eval", str(run), "--eval-env", "wrapped_envs:Wider"]) == 2
    assert "can't be evaluated in wrapped_envs:Wider" in capsys.readouterr().err


def test_where_another_environment_runs() -> None:
    config = Config(env="HalfCheetah-v5", env_kwargs={"a": 1}, vector="envpool")
    assert EvalEnv("Hopper-v5").config(config) == config.replace(env="Hopper-v5", env_kwargs={}, vector="auto")
    assert EvalEnv(None, {"b": 2}).config(config).env_kwargs == {"a": 1, "b": 2}
    assert EvalEnv(Ticker).config(config).env_kwargs == {"a": 1}  # as `evaluate(run, env=callable)` always did
    assert EvalEnv(GivenEnv(Ticker())).config(config).env_kwargs == {}  # it takes no arguments
    assert EvalEnv().config(config) is config
    workers = config.replace(vector="workers")
    assert [EvalEnv(env).config(workers).vector for env in ("Hopper-v5", Ticker, "CheetahRun-v1")] == [
        "workers",
        "workers",
        "auto",
    ]


def test_an_agent_stacks_single_observations_itself() -> None:
    """It acts on the environment's own observations as the pool's policy does on stacks."""
    run = proxrl.train("wrapped_envs:Album", **{**TINY, "eval_every": None}, frame_stack=3, encoder="small").path
    agent = proxrl.load(run)
    pool = build_environments(agent.config, "wrapped_envs:Album", 1)
    env: gymnasium.Env = Album()
    env.reset()  # as the pool does when it looks for masks
    stacks, (obs, info) = pool.reset(0), env.reset()
    seen: list[Any] = []

    def act(rows: Any, state: Any, *_: Any) -> Any:
        seen.append(tree_map(np.copy, rows))
        return np.zeros(len(rows["action_mask"]), np.int64), state

    agent.compute.act = act  # type: ignore[method-assign]
    twins = proxrl.load(run)
    twins.compute.act = act  # type: ignore[method-assign]
    for _ in range(12):
        agent.act(obs, mask=info["action_mask"])
        tree_map(np.testing.assert_array_equal, seen[-1], stacks)
        twins.act(tree_map(lambda leaf: np.stack([leaf] * 2), obs), mask=[info["action_mask"]] * 2)
        tree_map(lambda rows, stack: np.testing.assert_array_equal(rows, np.concatenate([stack] * 2)), seen[-1], stacks)
        step, (obs, _, terminated, truncated, info) = pool.step(np.zeros(1, np.int64)), env.step(0)
        stacks = step.obs
        if terminated or truncated:
            agent.reset()
            twins.reset()
            obs, info = env.reset()
    agent.act(tree_map(lambda leaf: leaf[0], stacks)["observation"], mask=info["action_mask"])  # a whole stack
    tree_map(np.testing.assert_array_equal, seen[-1], stacks)
    pool.close()


def test_vectors_of_several_environments_and_mistakes() -> None:
    run = proxrl.train(Ticker, **{**TINY, "eval_every": None}, frame_stack=3).path
    agent = proxrl.load(run)
    one = [agent.act(np.array([n, 1])) for n in range(4)]
    agent.reset()
    both = [agent.act(np.array([[n, 1], [n, 1]])) for n in range(4)]
    assert [actions.tolist() for actions in both] == [[action, action] for action in one]
    assert agent.act(np.array([1, 1, 2, 1, 3, 1])) == one[3]
    with pytest.raises(ProxRLError, match="there are 3 observations, but there were 2 before"):
        agent.act(np.zeros((3, 2)))
    with pytest.raises(ProxRLError, match=r"has shape \(5,\), but this agent takes \(6,\)"):
        agent.act(np.zeros(5))


def test_an_export_says_how_observations_are_prepared() -> None:
    words = ["wrapped_envs:Append", "number=2.5"]
    run = proxrl.train("wrapped_envs:Ticker", **TINY, frame_stack=3, action_repeat=2, wrapper=words).path
    exported = export_policy(run, format="pt2", episodes=2)
    assert exported.difference < 1e-4
    card = exported.card.read_text()
    for text in (
        "a stack of the environment's last 3 observations, the oldest first",
        "Each action is repeated for 2 steps",
        "`wrapped_envs:Append(number=2.5)`",
        "observations prepared as described below",
        "[batch,9]",
    ):
        assert text in card, text
    assert "frame_stack = 3" in (exported.card.parent / "settings.toml").read_text()
    import zipfile

    with zipfile.ZipFile(exported.path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("proxrl.json"))
        facts = json.loads(archive.read(name))
    assert json.loads(facts["observation_preparation"]) == {"action_repeat": 2, "wrapper": words, "frame_stack": 3}
