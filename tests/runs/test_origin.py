"""`--init-from`: what a run takes from another one, what does not fit, and what a resumed run does."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import plugins
import proxrl
from commands import saved
from proxrl.cli import main
from proxrl.errors import ProxRLError
from proxrl.export.exporter import export_policy
from proxrl.report.page_data import page_data
from proxrl.runs.folder import RunFolder
from proxrl.runs.origin import Origin, read_origin
from proxrl.tuning.run import with_origin_path

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_steps": 16,
    "num_minibatches": 2,
    "epochs": 2,
    "total_steps": 64,
    "hidden_sizes": [8],
    "normalize_observations": True,
    "normalize_rewards": True,
    "quiet": True,
    "tensorboard": False,
}


class Beginning(proxrl.Callback):
    """Copies what a run starts with."""

    def on_start(self, session: Any) -> None:
        self.step, self.tensors = session.step, {name: tensor.clone() for name, tensor in session.trainee.tensors().items()}


def train(folder: Path, env: Any = "Pendulum-v1", **settings: Any) -> tuple[proxrl.Result, Beginning]:
    beginning = Beginning()
    result = proxrl.train(env, runs_dir=folder, callbacks=[beginning], **{**SMALL, **settings})
    return result, beginning


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("source"), save_every=32)[0].path


def test_a_run_starts_with_the_weights_and_statistics_of_another(source: Path, tmp_path: Path) -> None:
    tensors, _ = saved(source)
    result, beginning = train(tmp_path, init_from=source, name="tuned", seed=7)
    assert beginning.step == 0
    taken = [name for name in beginning.tensors if name.startswith(("policy.", "rewards."))]
    assert {"policy.head.log_std", "policy.preprocess.moments.mean", "rewards.moments.count"} < set(taken)
    assert all(torch.equal(beginning.tensors[name], tensors[name]) for name in taken)
    assert int(beginning.tensors["rewards.moments.count"]) == 64
    others = [name for name in beginning.tensors if name not in taken]
    assert any(name.startswith("optimizer.") for name in others)
    assert all(not beginning.tensors[name].any() for name in others if name.startswith("optimizer."))
    # It has learned from there on: its statistics go on, and its weights are other ones.
    after, state = saved(result.path)
    assert state["step"] == 64
    assert int(after["policy.preprocess.moments.count"]) == 128
    assert not torch.equal(after["policy.actor.layers.0.weight"], tensors["policy.actor.layers.0.weight"])


def test_the_origin_is_recorded_and_shown(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**SMALL, "quiet": False, "init_from": str(source), "init_checkpoint": "step-32", "runs_dir": tmp_path}
    path = proxrl.train("Pendulum-v1", **settings).path
    assert f"Starting with the weights and statistics of {source}, checkpoint step-32 (step 32)" in capsys.readouterr().out
    assert read_origin(RunFolder(path)) == Origin(str(source), "step-32", 32, "Pendulum-v1/ppo/seed1")
    assert f'init_from = "{source}"' in (path / "config.toml").read_text()
    (run,) = page_data([RunFolder(path)])["runs"]
    assert run["origin"] == f"{source}, checkpoint step-32 (step 32)"
    assert run["settings"]["init_checkpoint"] == "step-32"
    exported = export_policy(path, format="pt2", episodes=0)
    card, published = exported.card.read_text(), (exported.path.parent / "settings.toml").read_text()
    name = "Pendulum-v1/ppo/seed1"
    assert f"Training started with the weights and statistics of `{name}, checkpoint step-32 (step 32)`." in card
    assert f'| `init_from` | `"{name}"` |' in card
    assert f'init_from = "{name}"' in published
    assert str(source.parents[2]) not in card + published  # both are published, so they have no paths of this machine
    assert main(["runs", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["origin"]["step"] == 32
    (path / "origin.json").write_text('{"run": 1, "step": "x"}')
    assert read_origin(RunFolder(path)) is None
    proxrl.train("Pendulum-v1", runs_dir=tmp_path, clobber=True, **SMALL)
    assert not (path / "origin.json").exists()


def test_a_resumed_run_does_not_need_the_other_one_any_more(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    result, _ = train(tmp_path, init_from=copy)
    tensors, _ = saved(result.path)
    shutil.rmtree(copy)
    resumed, beginning = train(tmp_path, init_from=copy, total_steps=96)
    assert (beginning.step, resumed.step) == (64, 96)
    assert all(torch.equal(beginning.tensors[name], tensors[name]) for name in beginning.tensors)
    with pytest.raises(ProxRLError, match="--init-from is off, but this run was started with"):
        train(tmp_path, total_steps=128)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {}, "the environment's observation space is"),
        ("MountainCarContinuous-v0", {}, "the environment's observation space is"),
        ("Pendulum-v1", {"hidden_sizes": [9]}, r"policy.actor.layers.0.weight has shape \[8, 3\] there and \[9, 3\] here;"),
        ("Pendulum-v1", {"hidden_sizes": [9]}, "that run has --hidden-sizes 8$"),
        ("Pendulum-v1", {"memory": "gru"}, "is missing there; that run has --memory off"),
        ("Pendulum-v1", {"normalize_observations": False}, "is not part of this run; that run has --normalize-observations$"),
        ("Pendulum-v1", {"activation": "relu"}, "because --activation is tanh there and relu here"),
        ("Pendulum-v1", {"init_checkpoint": "step-5"}, "has no checkpoint 'step-5'; it has latest, step-32, step-64"),
        ("Pendulum-v1", {"init_from": "Nowhere-v1"}, "no run at 'Nowhere-v1'"),
    ],
)
def test_what_does_not_fit(source: Path, tmp_path: Path, env: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ProxRLError, match=message) as caught:
        train(tmp_path, env, **{"init_from": source, **settings})
    assert str(caught.value).startswith("--init-from") or "init_from" in settings or "init_checkpoint" in settings
    assert list(tmp_path.iterdir()) == []


def test_networks_of_other_code_are_a_warning_and_other_arguments_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "other_encoder", plugins.make_encoder, raising=False)
    path = train(tmp_path, encoder="plugins:make_encoder")[0].path
    for encoder in ("plugins:make_encoder", "plugins:other_encoder"):
        train(tmp_path, init_from=path, name="tuned", encoder=encoder, quiet=False, clobber=True)
        warned = "warning: --encoder is plugins:make_encoder in that run and plugins:other_encoder here, so its weights may mean"
        assert (warned in capsys.readouterr().out) == (encoder == "plugins:other_encoder")
    with pytest.raises(ProxRLError, match="because --encoder-kwargs is empty there and width=12 here"):
        train(tmp_path, init_from=path, name="third", encoder="plugins:make_encoder", encoder_kwargs={"width": 12})


def test_trials_of_a_study_get_a_path_because_they_have_a_runs_folder_of_their_own(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parents[2])
    Path("runs").symlink_to(".")
    assert with_origin_path({"init_from": "Pendulum-v1/ppo", "clip": 0.1}) == {"init_from": str(source.resolve()), "clip": 0.1}
    assert with_origin_path({"clip": 0.1}) == {"clip": 0.1}
    assert with_origin_path({"init_from": "off"}) == {"init_from": "off"}


def test_a_run_can_not_start_from_itself(source: Path) -> None:
    runs = source.parents[2]
    with pytest.raises(ProxRLError, match="is the folder of this run itself; give this run another --name"):
        train(runs, init_from="Pendulum-v1/ppo", clobber=True)
    assert saved(source)[1]["step"] == 64


def test_a_damaged_checkpoint_names_intact_ones(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    file = copy / "checkpoints" / "latest.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ProxRLError, match=r"is cut short .* use --init-checkpoint step-64 \(step 64\)"):
        train(tmp_path, init_from=copy)


def test_the_code_of_somebody_else_is_not_imported(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the other run may name code; only its tensors are used, and none of it is needed for them."""
    copy = tmp_path / "theirs"
    shutil.copytree(source, copy)
    text = (copy / "config.toml").read_text().replace('env = "Pendulum-v1"', 'env = "someones_code:make"')
    for name in ("callback", "advantage"):
        text = text.replace(f'{name} = "off"', f'{name} = "someones_code:{name}"')
    assert text.count("someones_code") == 3
    (copy / "config.toml").write_text(text)
    (tmp_path / "someones_code.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    result, beginning = train(tmp_path / "runs", init_from=copy)
    assert result.finished
    assert torch.equal(beginning.tensors["policy.action.weight"], saved(copy)[0]["policy.action.weight"])
    assert "someones_code" not in sys.modules
