"""Environments given as instances, and vectorized environments: as instances, callables and names."""

from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorWrapper

import proxrl
from commands import metrics
from odd_envs import Odd, make_short
from proxrl.cli import main
from proxrl.envs.api import Autoreset
from proxrl.envs.given import FirstMade
from proxrl.envs.vector import VectorEnvs
from vector_envs import Clock, Silent, at_least, clocks, masked, three_clocks

SMALL: dict[str, Any] = {"rollout_steps": 16, "num_minibatches": 2, "hidden_sizes": (8,), "total_steps": 96, "quiet": True}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_steps_and_endings(mode: str) -> None:
    pool = VectorEnvs(clocks(2, mode))  # the first is truncated after 3 steps, the second terminated after 4
    assert pool.autoreset.name == ("NEXT_STEP" if mode == "NextStep" else "SAME_STEP")
    pool.reset(seed=0)
    counts = [0, 0]  # steps since the last reset
    for _ in range(20):
        step = pool.step(np.zeros(2, np.int64))
        finals = iter([] if step.final_obs is None else step.final_obs["count"][:, 0])
        for n, length in enumerate((3, 4)):
            if mode == "NextStep" and counts[n] == length:  # the dummy step
                assert not step.valid[n]
                assert (step.obs["count"][n], step.reward[n], step.terminated[n], step.truncated[n]) == (0, 0, False, False)
                counts[n] = 0
                continue
            counts[n] += 1
            ended = counts[n] == length
            assert (step.valid[n], step.reward[n]) == (True, counts[n])
            assert (step.truncated[n], step.terminated[n]) == (ended and n == 0, ended and n == 1)
            episodes = [episode for episode in step.episodes if episode.env == n]
            assert len(episodes) == ended
            if ended:
                assert episodes[0].total_reward == sum(range(length + 1))
                assert (episodes[0].length, episodes[0].success) == (length, True)
            if ended and mode == "SameStep":
                assert next(finals) == length
                counts[n] = 0
            assert step.obs["count"][n] == counts[n]
            assert step.obs["length"][n] == length
            assert step.obs["count"].dtype == np.float32
    pool.close()


def test_the_reward_of_a_dummy_step_does_not_count_whatever_it_is() -> None:
    class Undefined(VectorWrapper):
        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = self.env.step(actions)
            return obs, np.where(obs["count"][:, 0] == 0, np.nan, rewards), *rest

    pool = VectorEnvs(Undefined(clocks(2, "NextStep")))
    pool.reset(seed=0)
    steps = [pool.step(np.zeros(2, np.int64)) for _ in range(10)]
    assert not all(step.valid.all() for step in steps)
    assert all(np.isfinite(step.reward).all() for step in steps)
    assert {episode.total_reward for step in steps for episode in step.episodes} == {6.0, 10.0}


def test_worker_processes_make_their_own_environments() -> None:
    class Fixed:
        def __reduce__(self) -> Any:
            raise TypeError("it can't be copied")

    made = FirstMade(Fixed, "Fixed", {}, 1)
    assert cloudpickle.loads(cloudpickle.dumps(made))._first is None
    assert isinstance(made(), Fixed)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_run_from_every_form_of_a_vectorized_environment(mode: str) -> None:
    given = clocks(3, mode)
    instance = proxrl.train(given, **SMALL)
    assert given.reset(seed=0)[0]["count"].shape == (3, 1), "it is still open"
    named = proxrl.train(clocks, env_kwargs={"mode": mode}, **SMALL)
    lines = [[(line["step"], line["losses/value_loss"]) for line in metrics(result.path)] for result in (instance, named)]
    assert lines[0] == lines[1]
    sizes = ("--rollout-steps", "16", "--num-minibatches", "2", "--hidden-sizes", "8", "--total-steps", "96")
    assert main(["train", "vector_envs:clocks", "--env-kwargs", f"mode={mode}", *sizes, "--name", "shell", "--quiet"]) == 0
    assert metrics(Path("runs/vector_envs-clocks/shell/seed1")) == metrics(named.path)
    assert proxrl.load(named.path).config.num_envs == 3
    assert proxrl.load(named.path).config.vector == "native"
    assert instance.path != named.path
    # `clocks` takes num_envs: the episodes are divided among as many environments as divide them.
    assert sorted(proxrl.evaluate(named.path, episodes=5)["stochastic"].lengths) == [3, 4, 5, 6, 7]
    with pytest.raises(proxrl.ProxRLError, match=r"given as an instance.*proxrl.evaluate\(run, env=\.\.\.\)"):
        proxrl.evaluate(instance.path)
    scores = proxrl.evaluate(instance.path, episodes=4, env=given)["deterministic"]
    assert sorted(scores.lengths) == [3, 3, 4, 5], "a fixed number of episodes in each of the three environments"
    assert proxrl.evaluate(instance.path, episodes=2, env=Clock)["deterministic"].lengths == (3, 3)


def test_another_number_of_environments() -> None:
    assert proxrl.load(proxrl.train(clocks, num_envs=2, **SMALL).path).config.num_envs == 2
    assert proxrl.load(proxrl.train(at_least, num_envs=2, **SMALL).path).config.num_envs == 2
    for env, advice in ((three_clocks, "let it take num_envs"), (clocks(), "give a callable that makes them")):
        with pytest.raises(proxrl.ProxRLError, match=f"--num-envs is 4, but .* has 3 environments; leave it out, or {advice}"):
            proxrl.train(env, num_envs=4, **SMALL)
    with pytest.raises(proxrl.ProxRLError, match=r"--num-envs is 4, but .* has 1 environment;"):
        proxrl.train(make_short(), num_envs=4, **SMALL)


def test_evaluation_during_training_makes_a_callable_again() -> None:
    result = proxrl.train(three_clocks, eval_every=48, eval_episodes=4, **SMALL)
    # The first environment plays two of four episodes of 3, 3, 4 and 5 steps.
    assert {line.get("eval/episodic_length") for line in metrics(result.path)} == {None, 15 / 4}


def test_processes_of_gymnasium() -> None:
    envs = AsyncVectorEnv([lambda: Clock(3), lambda: Clock(4)], autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        assert proxrl.train(envs, **SMALL).finished
    finally:
        envs.close()


def test_resuming_says_that_episodes_differ(capsys: pytest.CaptureFixture[str]) -> None:
    given = clocks()
    settings = {**SMALL, "quiet": False}
    proxrl.train(given, **settings)
    first = capsys.readouterr()
    assert proxrl.train(given, **{**settings, "total_steps": 192}).step == 192
    second = capsys.readouterr()
    note = "A VectorEnv draws its own seeds"
    assert note not in first.out + first.err
    assert note in second.out + second.err
    assert "env=...) from Python" in second.out + second.err


def test_a_plain_instance_is_what_its_id_makes() -> None:
    env = gymnasium.make("CartPole-v1")
    given = proxrl.train(env, eval_every=48, eval_episodes=2, **SMALL)
    assert given.path == Path("runs/CartPole-v1/ppo/seed1")
    assert env.reset(seed=0)[0].shape == (4,)
    named = proxrl.train("CartPole-v1", num_envs=1, name="named", eval_every=48, eval_episodes=2, **SMALL)
    assert proxrl.load(given.path).config == proxrl.load(named.path).config.replace(name="ppo")
    assert metrics(given.path) == metrics(named.path)
    assert len(proxrl.evaluate(given.path, episodes=3, env=env)["stochastic"].returns) == 3
    assert proxrl.evaluate(given.path, episodes=3)["stochastic"].returns


def test_other_instances_are_not_confused_with_their_id() -> None:
    for env in (make_short(), gymnasium.wrappers.ClipReward(gymnasium.make("CartPole-v1"), 0.0, 0.5)):
        assert proxrl.train(env, clobber=True, **SMALL).env == "CartPole-v1:<instance>"
    assert proxrl.train(Odd(), **SMALL).env == "odd_envs.Odd:<instance>"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eval_every": 10}, "--eval-every needs a second environment"),
        ({"capture_video": 1}, "--capture-video needs a second environment"),
        ({"vector": "workers"}, "--vector workers makes environments, but an instance is given"),
        ({"vector": "envpool"}, "--vector envpool makes environments"),
        ({"env_kwargs": {"a": 1}}, "an instance takes no arguments"),
    ],
)
def test_what_instances_can_not_do(settings: dict[str, Any], words: str) -> None:
    for env in (clocks(), make_short()):
        with pytest.raises(proxrl.ProxRLError, match=words):
            proxrl.train(env, **settings)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (lambda: clocks(mode="Disabled"), r"SyncVectorEnv has AutoresetMode.DISABLED.*autoreset_mode=AutoresetMode.NEXT_STEP"),
        (Silent, r"Silent does not say when it resets.*metadata\['autoreset_mode'\]"),
        (lambda: Silent("obs", AutoresetMode.NEXT_STEP), r"failed in reset: the observations have shape \(3,\).*\(2, 3\)"),
        (lambda: Silent("reward", AutoresetMode.NEXT_STEP), r"failed in step.*rewards have shape \(2, 1\)"),
        (lambda: Silent("final_obs", AutoresetMode.SAME_STEP), "failed in step.*final_obs"),
        (lambda: Silent("step", AutoresetMode.SAME_STEP), "failed in step: RuntimeError: the wheel came off"),
        (masked, "masks need single environments.*--action-mask off"),
    ],
)
def test_faulty_vectorized_environments(env: Any, words: str) -> None:
    with pytest.raises(proxrl.ProxRLError, match=words):
        proxrl.train(env, **SMALL)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vector_envs:clocks", "--vector", "inprocess"], "for a VectorEnv, use --vector native"),
        (["vector_envs:clocks", "--max-episode-steps", "3"], "--max-episode-steps needs single environments"),
        (["vector_envs:clocks", "--action-mask", "info"], "--action-mask info needs single environments"),
        (["vector_envs:clocks", "--env-kwargs", "wheels=3"], "check --env-kwargs wheels=3"),
        (["vector_envs:three_clocks", "--num-envs", "5"], "--num-envs is 5, but vector_envs:three_clocks has 3 environments"),
        (["odd_envs:Odd", "--vector", "native"], "odd_envs:Odd returned Odd, but --vector native needs"),
    ],
)
def test_wrong_words_in_the_shell(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words, "--quiet"]) == 2
    assert says in capsys.readouterr().err


def test_print_config_shows_the_number_of_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "vector_envs:clocks", "--print-config"]) == 0
    out = capsys.readouterr().out
    assert "num_envs = 3 " in out
    assert "# the number that the environment has" in out
    assert "# auto: the environment is vectorized" in out


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_recording(mode: str) -> None:
    pytest.importorskip("imageio_ffmpeg")
    result = proxrl.train(clocks, env_kwargs={"mode": mode}, capture_video=1, **{**SMALL, "total_steps": 48})
    assert (result.path / "videos/step-48.mp4").exists()
    recording = proxrl.record(result.path, episodes=2)
    assert (recording.lengths, recording.frames) == ((3, 3), 8)
    plain = proxrl.train(three_clocks, name="plain", **SMALL)
    with pytest.raises(proxrl.ProxRLError, match="let its callable accept render_mode='rgb_array'"):
        proxrl.record(plain.path)
    three = clocks(3, render_mode="rgb_array")
    assert proxrl.record(plain.path, env=three).lengths == (3,), "of the first environment"


def test_autoreset_modes_are_those_of_gymnasium() -> None:
    assert {mode.name for mode in AutoresetMode} == {"NEXT_STEP", "SAME_STEP", "DISABLED"}
    assert {mode.name for mode in Autoreset} >= {"NEXT_STEP", "SAME_STEP"}
