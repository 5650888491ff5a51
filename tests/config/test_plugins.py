"""Custom networks, callbacks, loggers and environments, from Python and from the command line."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import plugins
import proxrl
from commands import assert_same_checkpoint, metrics, run
from harness import assemble, train
from plugins import Doubling, Lines, TwoRooms
from proxrl.build import is_small
from proxrl.cli import main
from proxrl.config import Config
from proxrl.engine.numpy_mlp import NumpyCompute
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.errors import ProxRLError
from proxrl.policy.networks import make_policy

OBS, ACTION = TwoRooms.observation_space, TwoRooms.action_space
TINY = {"num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 96, "tensorboard": False}
TINY_FLAGS = ("--num-envs", "2", "--rollout-steps", "16", "--num-minibatches", "2", "--epochs", "1", "--total-steps", "96")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(count: int = 6, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "hint": torch.from_numpy(rng.normal(size=(count, 2)).astype(np.float32)),
        "secret": torch.from_numpy(rng.normal(size=(count, 3)).astype(np.float32)),
        "room": torch.from_numpy(rng.integers(0, 2, count)),
    }


# --- networks -----------------------------------------------------------------------------------------------------------------


def test_a_custom_encoder_feeds_both_heads() -> None:
    policy = make_policy(Config(encoder="plugins:make_encoder", encoder_kwargs={"width": 5}), OBS, ACTION)
    assert type(policy.actor) is type(policy.critic) is plugins.Encoder
    assert policy.actor is not policy.critic
    assert (policy.action.in_features, policy.value.in_features) == (5, 5)
    shared = make_policy(Config(encoder="plugins:Encoder", trunk="shared"), OBS, ACTION)
    assert shared.critic is None
    assert shared.value.in_features == 12


def test_custom_policy_and_value_networks_replace_encoders_and_heads() -> None:
    settings = {"policy": "plugins:make_policy", "value": "plugins:make_value", "policy_kwargs": {"width": 4}}
    policy = make_policy(Config(**settings), OBS, ACTION)
    prepared = policy.preprocess(rows())
    distribution, value, _ = policy(rows(), (), None)
    assert torch.equal(distribution.log_probs, torch.log_softmax(policy.actor(prepared), -1))
    assert torch.equal(value, policy.critic(prepared))  # [B, 1]: one value stream
    flat = make_policy(Config(**settings, value_kwargs={"flat": True}), OBS, ACTION)
    assert flat(rows(), (), None)[1].shape == (6, 1)
    names = {name.partition(".")[0] for name, _ in policy.named_parameters()}
    assert names == {"actor", "critic"}


def test_preprocessed_observations_keep_their_structure() -> None:
    received: list[Any] = []

    class Recording(plugins.Encoder):
        def forward(self, obs: Any) -> torch.Tensor:
            received.append(obs)
            return super().forward(obs)

    plugins.recording = Recording  # type: ignore[attr-defined]
    policy = make_policy(Config(encoder="plugins:recording", normalize_observations=True), OBS, ACTION)
    policy(rows(), (), None)
    shapes = {key: tuple(leaf.shape) for key, leaf in received[-1].items()}
    assert shapes == {"hint": (6, 2), "room": (6, 2), "secret": (6, 3)}  # the room is one-hot encoded
    image = spaces.Dict(image=spaces.Box(0, 255, (3, 4, 4), np.uint8))
    policy = make_policy(Config(encoder="plugins:recording"), image, ACTION)
    policy({"image": torch.ones(2, 3, 4, 4, dtype=torch.uint8)}, (), None)
    assert tuple(received[-1]["image"].shape) == (2, 3, 4, 4)


def test_frozen_parameters_do_not_change_and_the_others_learn() -> None:
    config = Config(encoder="plugins:make_frozen", num_envs=2, rollout_steps=16, num_minibatches=2, total_steps=64)
    parts = assemble(config, InProcessEnvs([TwoRooms] * 2))
    encoders = {name: tensor.clone() for name, tensor in parts.policy.actor.state_dict().items()}
    heads = parts.policy.action.weight.clone()
    train(parts)
    assert all(torch.equal(tensor, encoders[name]) for name, tensor in parts.policy.actor.state_dict().items())
    assert not torch.equal(parts.policy.action.weight, heads)


@pytest.mark.parametrize("compute", ["auto", "autograd"])
def test_the_policy_does_not_depend_on_keys_that_only_the_critic_sees(compute: str) -> None:
    config = Config(actor_keys=("hint", "room"), num_envs=2, rollout_steps=32, total_steps=640, compute=compute)
    parts = assemble(config, InProcessEnvs([TwoRooms] * 2))
    train(parts)
    obs, other_obs = rows(seed=0), rows(seed=0) | {"secret": rows(seed=9)["secret"]}
    with torch.no_grad():
        first, value, _ = parts.policy(obs, (), None)
        second, other_value, _ = parts.policy(other_obs, (), None)
    assert torch.equal(first.log_probs, second.log_probs)
    assert (value - other_value).abs().max() > 1e-3
    # Nor do its gradients: nothing in the actor reads the secret.
    secret = obs["secret"].clone().requires_grad_()
    parts.policy(obs | {"secret": secret}, (), None)[0].entropy().sum().backward(retain_graph=False)
    assert secret.grad is None or secret.grad.abs().max() == 0
    arrays, changed = ({key: leaf.numpy() for key, leaf in rows.items()} for rows in (obs, other_obs))
    starts, noise = np.zeros(6, np.bool_), parts.policy.head.noise(np.random.default_rng(0), 6)
    for sample in (None, noise):
        actions = [parts.compute.act(rows, (), starts, sample)[0] for rows in (arrays, changed)]
        assert np.array_equal(*actions)


def test_critic_keys_restrict_the_value_only() -> None:
    policy = make_policy(Config(critic_keys=("secret",)), OBS, ACTION)
    here, there = rows(seed=0), rows(seed=9)
    with torch.no_grad():
        _, value, _ = policy(here, (), None)
        assert torch.equal(value, policy(there | {"secret": here["secret"]}, (), None)[1])
        assert not torch.equal(value, policy(here | {"secret": there["secret"]}, (), None)[1])
    assert not NumpyCompute.supports(policy)


def test_an_asymmetric_critic_explains_more_variance() -> None:
    """Seeds 1 and 2. The gain of an episode, hidden from the actor, causes most of the variance of the returns."""
    for seed in (1, 2):
        explained = {}
        for name, keys in (("asymmetric", None), ("blind", ("hint", "room"))):
            config = Config(
                actor_keys=("hint", "room"), critic_keys=keys, num_envs=4, rollout_steps=64, total_steps=256 * 10, seed=seed,
                learning_rate=3e-3, gamma=0.9, anneal_learning_rate=False,
            )  # fmt: skip
            session = train(assemble(config, InProcessEnvs([TwoRooms] * 4)))
            explained[name] = np.mean([line["losses/explained_variance"] for line in session.metrics[-4:]])
        assert explained["asymmetric"] > 0.8
        assert explained["blind"] < 0.2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": "plugins:make_wrong_size"}, "gives 7 numbers per row, but Discrete(2) takes 2"),
        ({"value": "plugins:make_wrong_size"}, "gives 7 numbers per row, but a value is one"),
        ({"encoder": "plugins:make_nothing"}, "returned NoneType, but must return a torch.nn.Module"),
        ({"encoder": "plugins:make_failure"}, "--encoder plugins:make_failure failed: RuntimeError: no such layer"),
        ({"encoder": "plugins:make_encoder", "encoder_kwargs": {"depth": 3}}, "check --encoder-kwargs depth=3"),
        ({"encoder": "plugins:Deaf"}, "can't read observations of"),
        ({"encoder": "plugins:Faulty"}, "gives a tensor of shape (2,) for 2 rows"),
        ({"value": "plugins:Faulty", "value_kwargs": {"fault": "squeeze"}}, "gives a tensor of shape () for 1 rows"),
        ({"value": "plugins:Faulty", "value_kwargs": {"fault": "double"}}, "gives torch.float64, but must give torch.float32"),
        ({"encoder": "plugins:Faulty", "encoder_kwargs": {"fault": "write"}}, "writes to the observations"),
        ({"encoder": "plugins:missing"}, "there is no such callable"),
        ({"encoder": "nowhere:build"}, "there is no module 'nowhere'"),
        ({"encoder": "plugins"}, "or yours as module:callable"),
        ({"encoder": ":x"}, "must be module:callable"),
        ({"actor_keys": ("hint", "wind")}, "--actor-keys names wind, but the observation has the keys hint, secret, room"),
    ],
)
def test_networks_of_the_wrong_form_are_rejected_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ProxRLError) as refusal:
        make_policy(Config(**settings), OBS, ACTION)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_keys_are_rejected_for_observations_without_keys() -> None:
    with pytest.raises(ProxRLError, match="--critic-keys chooses keys of a Dict observation"):
        make_policy(Config(critic_keys=("a",)), spaces.Box(-1, 1, (2,), np.float32), ACTION)


# --- callables in config.toml -------------------------------------------------------------------------------------------------


def test_callables_are_stored_by_name_and_imported_again() -> None:
    result = proxrl.train(
        TwoRooms, policy=plugins.make_policy, value=plugins.make_value, policy_kwargs={"width": 4}, **TINY, quiet=True
    )
    written = tomllib.loads((result.path / "config.toml").read_text())
    assert (written["policy"], written["value"]) == ("plugins:make_policy", "plugins:make_value")
    agent = proxrl.load(result.path)
    assert type(agent.policy.actor[0]) is plugins.Encoder
    assert agent.act(TwoRooms.observation_space.sample()) in (0, 1)
    assert proxrl.evaluate(result.path, episodes=2).keys() == {"deterministic", "stochastic"}


def test_a_callable_that_can_not_be_imported_by_name_is_rejected() -> None:
    with pytest.raises(ProxRLError, match="can't be imported by that name"):
        proxrl.train("CartPole-v1", policy=lambda *_: None, **TINY, quiet=True)


def test_the_command_accepts_networks_and_their_arguments(tmp_path: Path) -> None:
    words = ("train", "--env", "plugins:TwoRooms", "--policy", "plugins:make_policy", "--value", "plugins:make_value")
    done = run(*words, "--policy-kwargs", "width=4", "--value-kwargs", "flat=true", *TINY_FLAGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    evaluated = run("eval", "runs/plugins-TwoRooms/ppo/seed1", "--episodes", "2", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    again = run(*words, "--policy-kwargs", "width=5", "--value-kwargs", "flat=true", *TINY_FLAGS, cwd=tmp_path)
    assert again.returncode == 2
    assert "--policy-kwargs" in again.stderr
    assert again.stderr.count("\n") == 1


# --- callbacks and loggers ----------------------------------------------------------------------------------------------------


def test_a_callback_is_called_between_rollout_and_update_and_at_every_iteration() -> None:
    callback = Doubling()
    result = proxrl.train("CartPole-v1", callbacks=[callback], **TINY, quiet=True)
    assert callback.calls == [word for n in range(3) for word in (f"rollout {n}", f"iteration {n + 1}")]
    assert [line["mine/rewards"] for line in metrics(result.path)] == [8.0, 9.0, 10.0]


def test_training_uses_the_rollout_as_changed_by_a_callback() -> None:
    plain, doubled, scaled = (
        proxrl.train("CartPole-v1", name=name, **settings, **TINY, quiet=True)
        for name, settings in (("a", {}), ("b", {"callbacks": [Doubling()]}), ("c", {"reward_scale": 2.0}))
    )
    losses = [[line["losses/value_loss"] for line in metrics(result.path)] for result in (plain, doubled, scaled)]
    assert losses[1] == pytest.approx(losses[2])
    assert losses[0] != pytest.approx(losses[1])
    assert doubled.mean_return == pytest.approx(scaled.mean_return)  # returns are those of the environment


def test_a_run_stopped_by_a_callback_is_saved_and_can_be_resumed() -> None:
    stopped = proxrl.train("CartPole-v1", callbacks=[Doubling(factor=1.0, stop=2)], **TINY, quiet=True)
    assert (stopped.finished, stopped.step) == (False, 64)
    resumed = proxrl.train("CartPole-v1", callbacks=[Doubling(factor=1.0)], **TINY, quiet=True)
    assert (resumed.finished, resumed.step) == (True, 96)
    assert len(metrics(resumed.path)) == 3


def test_the_command_accepts_a_callback_and_a_logger(tmp_path: Path) -> None:
    flags = ("--callback", "plugins:Doubling", "--callback-kwargs", "factor=3", "path=calls.txt")
    log = ("--logger", "plugins:Lines", "--logger-kwargs", "path=mine.txt")
    done = run("train", "CartPole-v1", *flags, *log, *TINY_FLAGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == 6
    lines = (tmp_path / "mine.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["32", "64", "96", "closed"]
    resumed = run("train", "CartPole-v1", *TINY_FLAGS, cwd=tmp_path)
    assert "--callback" in resumed.stderr  # a callback may change what is learned, so it must not change on resume


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"callback": "plugins:Breaking"}, "Breaking.on_rollout failed: KeyError: 'oops'"),
        ({"callback": "plugins:Breaking", "callback_kwargs": {"how": "nan"}}, "a callback left rewards that are not finite"),
        (
            {"callback": "plugins:Breaking", "callback_kwargs": {"how": "metric"}},
            "Breaking.on_iteration left 'mine' = 'abc' in the metrics; they must be numbers",
        ),
        ({"clip": plugins.bad_schedule}, "the schedule plugins:bad_schedule failed at step 0: TypeError"),
    ],
)
def test_errors_name_the_plugin_that_failed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ProxRLError) as failure:
        proxrl.train("CartPole-v1", **settings, **TINY, quiet=True)
    assert words in str(failure.value)


def test_small_custom_networks_use_one_thread_and_large_ones_the_default() -> None:
    small = make_policy(Config(encoder="plugins:make_encoder"), OBS, ACTION)
    wide = make_policy(Config(encoder="plugins:make_encoder", encoder_kwargs={"width": 4096}), OBS, ACTION)
    assert (is_small(small, Config()), is_small(wide, Config())) == (True, False)
    wide.actor.layer = torch.nn.Conv2d(1, 1, 1)
    assert not is_small(wide, Config())


def test_loggers_are_closed_if_the_run_is_refused() -> None:
    proxrl.train("CartPole-v1", **TINY, quiet=True)
    with pytest.raises(ProxRLError, match="--clip"):
        proxrl.train("CartPole-v1", loggers=[Lines()], clip=0.3, **TINY, quiet=True)
    assert Path("lines.txt").read_text() == "closed\n"


class Unclosable(Lines):
    def close(self) -> None:
        raise RuntimeError("stuck")


def test_a_logger_that_fails_to_close_raises_after_the_run_is_saved() -> None:
    with pytest.raises(ProxRLError, match=r"Unclosable.close failed: RuntimeError: stuck"):
        proxrl.train("CartPole-v1", loggers=[Unclosable()], **TINY, quiet=True)
    assert proxrl.load("runs/CartPole-v1/ppo/seed1").step == 96


def test_an_environment_that_has_changed_is_rejected_on_evaluation_and_resume() -> None:
    result = proxrl.train(TwoRooms, **TINY, quiet=True)
    with pytest.raises(ProxRLError, match=r"the environment's observation space is Box.* but the policy was trained with Dict"):
        proxrl.evaluate(result.path, env="CartPole-v1", episodes=2)
    other = {**TINY, "total_steps": 200}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TwoRooms, "action_space", spaces.MultiDiscrete([2]))
        with pytest.raises(ProxRLError, match=r"the environment's action space is MultiDiscrete.* was trained with Discrete"):
            proxrl.train(TwoRooms, **other, quiet=True)


def test_an_agent_rejects_observations_outside_their_space() -> None:
    agent = proxrl.load(proxrl.train(TwoRooms, **TINY, quiet=True).path)
    fine = {"hint": np.zeros(2, np.float32), "secret": np.zeros(3, np.float32), "room": 1}
    assert agent.act(fine) in (0, 1)
    for key, value in (("room", 2), ("room", -1), ("hint", np.array([0, np.nan], np.float32))):
        with pytest.raises(ProxRLError, match="which is not in"):
            agent.act({**fine, key: value})


def test_loggers_passed_as_objects_are_closed_at_the_end() -> None:
    proxrl.train("CartPole-v1", loggers=[Lines()], **TINY, quiet=True)
    assert Path("lines.txt").read_text().splitlines()[-1] == "closed"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"callback": "plugins:make_nothing"}, "--callback plugins:make_nothing returned a NoneType, which has no method of a"),
        ({"logger": "plugins:Doubling"}, "which lacks log and close"),
        ({"logger": "plugins:make_failure"}, "failed: RuntimeError: no such layer"),
        ({"callbacks": [object()]}, "callbacks holds a object, which has no method of a callback; it needs one of on_start"),
        ({"callbacks": [Doubling]}, "callbacks holds the class Doubling, not an object of it"),
        ({"callbacks": Doubling()}, "callbacks is a Doubling, but must be a list of objects"),
        ({"loggers": [object()]}, "loggers holds a object, which lacks log and close"),
        ({"encoder": "plugins:Encoder", "encoder_kwargs": 3}, "--encoder-kwargs is 3, but must be a table of arguments"),
    ],
)
def test_callbacks_and_loggers_of_the_wrong_type_are_rejected_before_anything_is_written(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ProxRLError) as refusal:
        proxrl.train("CartPole-v1", **settings, **TINY, quiet=True)
    assert words in str(refusal.value)
    assert not (tmp_path / "runs").exists()


# --- --config -----------------------------------------------------------------------------------------------------------------


def test_the_config_of_a_run_repeats_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "seed": 5, "clip": "linear:0.3:0.1", "hidden_sizes": (8,), "value_epochs": 2, "encoder": plugins.make_encoder,
        "encoder_kwargs": {"width": 6}, "actor_keys": ("hint", "room"), "optimizer": "rmsprop", "max_episode_steps": 5,
        "value_learning_rate": None, "env_kwargs": {}, "compute": "autograd", "normalize_observations": True,
    }  # fmt: skip
    first = proxrl.train("plugins:TwoRooms", **TINY, **settings, quiet=True)
    file = first.path / "config.toml"
    second = proxrl.train(config=file, runs_dir="again", tensorboard=False, quiet=True)
    assert second.env == "plugins:TwoRooms"
    assert_same_checkpoint(first.path, second.path)
    assert metrics(first.path) == metrics(second.path)
    assert (second.path / "config.toml").read_text() == file.read_text()
    by_command = run("train", "--config", str(file), "--runs-dir", "third", "--no-tensorboard", cwd=tmp_path)
    assert by_command.returncode == 0, by_command.stderr
    assert_same_checkpoint(first.path, tmp_path / "third/plugins-TwoRooms/ppo/seed5")


def test_flags_override_the_file_and_the_file_overrides_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.toml").write_text('env = "CartPole-v1"\nepochs = 7\nclip = "off"\nnum_envs = 16\n')
    assert main(["train", "--config", "my.toml", "--num-envs", "2", "--print-config"]) == 0
    lines = dict(line.split("  # ") for line in capsys.readouterr().out.splitlines())
    sources = {setting.split(" = ")[0].strip(): (setting.split(" = ")[1].strip(), source) for setting, source in lines.items()}
    assert sources["env"] == ('"CartPole-v1"', "file my.toml")
    assert sources["epochs"] == ("7", "file my.toml")
    assert sources["clip"] == ('"off"', "file my.toml")
    assert sources["num_envs"] == ("2", "flag")
    assert sources["value_clip"][1].startswith(("default", "preset"))
    assert sources.keys() == Config.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs = 7", "no environment is given"),
        ('env = "CartPole-v1"\nepoch = 7', "no setting 'epoch'"),
        ("epochs =", "can't read my.toml"),
    ],
)
def test_unusable_config_files_are_rejected(text: str, words: str) -> None:
    Path("my.toml").write_text(text)
    with pytest.raises(ProxRLError, match=words):
        proxrl.train(config="my.toml", quiet=True)
    with pytest.raises(ProxRLError, match="can't read"):
        proxrl.train(config="missing.toml", quiet=True)


def test_an_environment_given_twice_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--env", "Acrobot-v1"]) == 2
    assert "given twice" in capsys.readouterr().err
