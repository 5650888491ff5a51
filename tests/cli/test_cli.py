"""The commands: what they print, write and return."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import proxrl
from commands import SMALL, metrics, run, steps
from proxrl.cli import main
from written_runs import write_run

FLAGS = """--total-steps --num-envs --rollout-steps --num-minibatches --epochs --learning-rate --gamma --gae-lambda
--clip --value-clip --entropy-coef --value-coef --max-grad-norm --target-kl --seed --name --runs-dir --engine
--vector --world --device --eval-every --save-every --clobber --wandb --preset --print-config --quiet --debug""".split()  # noqa: SIM905  a list of words
CLEANRL_NAMES = {
    *(f"charts/{name}" for name in ("episodic_return", "episodic_length", "SPS", "learning_rate")),
    *(f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac")),
    "losses/explained_variance",
}
OWN_NAMES = {"losses/final_kl", "charts/mean_return"}
OWN_NAMES |= {f"charts/share_{name}" for name in ("environments", "acting", "learning")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("trained")
    return folder, run("train", "CartPole-v1", "--total-steps", "2000", cwd=folder)


def test_train_prints_the_planned_steps_and_ends_there(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = trained
    assert (done.returncode, done.stderr) == (0, "")
    assert "2,048 steps" in done.stdout
    assert "2,000 asked for" in done.stdout
    assert steps(folder / "runs/CartPole-v1/ppo/seed1") == list(range(256, 2049, 256))
    curve, closing, took, *commands = done.stdout.splitlines()[-6:]
    assert re.fullmatch(r"return [▁▂▃▄▅▆▇█]{8} [\d.]+ to [\d.]+", curve)
    assert closing.startswith("Done at step 2,048: return ")
    assert re.fullmatch(r"Took 0:\d\d:\d\d at [\d,]+ steps/s\. Next:", took)
    assert [command.split("  # ")[0] for command in commands] == [
        f"  proxrl {name:<6} runs/CartPole-v1/ppo/seed1" for name in ("eval", "play", "report")
    ]
    assert max(map(len, done.stdout.splitlines()[-6:])) <= 80


@pytest.mark.parametrize(
    "words",
    [("CartPole-v1", "--vector", "native"), ("Acrobot-v1", "--vector", "envpool"), ("CartPole-v1", "--vector", "workers")],
)
def test_every_vector_type_ends_at_the_planned_steps(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "envpool" in words:
        pytest.importorskip("envpool")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words, *SMALL, "--total-steps", "1000"]) == 0
    assert "1,024 steps" in capsys.readouterr().out
    assert steps(tmp_path / "runs" / words[0] / "ppo/seed1")[-1] == 1024


def test_metrics_have_the_names_of_cleanrl(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder = trained[0] / "runs/CartPole-v1/ppo/seed1"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line.keys() == {"step", "time", *OWN_NAMES, *CLEANRL_NAMES} for line in lines)
    assert all(0 < sum(line[name] for name in OWN_NAMES if "share" in name) <= 1 for line in lines)
    board = EventAccumulator(str(folder))
    board.Reload()
    assert set(board.Tags()["scalars"]) == CLEANRL_NAMES | OWN_NAMES
    for name in CLEANRL_NAMES:
        events = board.Scalars(name)
        assert [event.step for event in events] == list(range(256, 2049, 256))
        assert [event.value for event in events] == pytest.approx([line[name] for line in lines])


def test_config_in_the_run_folder_repeats_the_run(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    written = tomllib.loads((trained[0] / "runs/CartPole-v1/ppo/seed1/config.toml").read_text())
    assert written.keys() == proxrl.Config.__dataclass_fields__.keys()
    assert (written["total_steps"], written["env"], written["vector"]) == (2000, "CartPole-v1", "inprocess")


def test_eval(
    trained: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained[0])
    assert main(["eval", "runs/CartPole-v1/ppo/seed1", "--episodes", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["deterministic", "stochastic"]
    assert all("return" in line and "6 episodes" in line for line in lines)
    assert main(["eval", "CartPole-v1", "--episodes", "6", "--json"]) == 0  # the only run of that environment
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"deterministic", "stochastic"}
    for score in scores.values():
        assert len(score["returns"]) == score["episodes"] == 6
        assert score["mean"] == pytest.approx(sum(score["returns"]) / 6)
    assert main(["eval", "CartPole-v1", "--episodes", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == scores  # the same episodes
    assert main(["eval", "CartPole-v1", "--episodes", "6", "--json", "--seed", "9"]) == 0
    assert json.loads(capsys.readouterr().out) != scores


def test_without_arguments_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("train", "eval", "envs"))


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("train", FLAGS),
        ("eval", ["--episodes", "--checkpoint", "--seed", "--json", "--debug"]),
        ("envs", ["--debug"]),
        ("check", ["--env-kwargs", "--episodes", "--seed", "--json", "--debug"]),
    ],
)
def test_help_lists_every_flag(command: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert [flag for flag in flags if flag not in words] == []


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["train", "CartPole-v1", "--lerning-rate", "1"], ["envs"], ["check", "CartPole-v1"]],
)
def test_help_and_simple_commands_do_not_import_torch(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom proxrl.cli import main\n"
        f"try: main({words})\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_version_and_module(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert done.stdout.strip() == f"proxrl {proxrl.__version__}"
    script = Path(sys.executable).with_name("proxrl")
    assert subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout == done.stdout


def test_print_config_names_the_source_of_every_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--gamma", "0.9", "--target-kl", "0.02", "--env-kwargs", "g=9.81", 'word="ü"', "--value-clip", "off", "--seed", "7"]
    assert main(["train", "Pendulum-v1", *words, "--print-config"]) == 0
    out = capsys.readouterr().out
    values = tomllib.loads(out)
    assert values["env_kwargs"] == {"g": 9.81, "word": "ü"}
    assert (values["gamma"], values["seed"], values["rollout_steps"], values["value_clip"]) == (0.9, 7, 256, "off")
    sources = {line.split(" = ")[0]: line.partition("  # ")[2] for line in out.splitlines()}
    assert sources.keys() == values.keys() == proxrl.Config.__dataclass_fields__.keys()
    assert sources["gamma"] == sources["target_kl"] == sources["value_clip"] == "flag"
    assert sources["name"] == "default"
    assert sources["epochs"] == "preset classic: RL Baselines3 Zoo"
    assert all(sources.values())
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_a_custom_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('[values]\nnum_envs = { value = 3, source = "a guess" }\n')
    assert main(["train", "CartPole-v1", "--preset", "mine.toml", "--print-config"]) == 0
    assert "# preset mine.toml: a guess" in capsys.readouterr().out


def test_envs_lists_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "dm_control/", "FrozenLake-v1"))
    assert "installed" in out


def test_quiet_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", *SMALL, "--total-steps", "64", "--eval-every", "32", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["train", "CartPole-v1", *SMALL, "--total-steps", "64", "--wandb", "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.glob("runs/CartPole-v1/ppo/seed1/wandb/offline-run-*/*.wandb"))


def test_output_folder_and_tensorboard_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "CartPole-v1", *SMALL, "--total-steps", "64", "--no-tensorboard", "--runs-dir", "my runs", "--name", "b"])
        == 0
    )
    folder = tmp_path / "my runs/CartPole-v1/b/seed1"
    assert metrics(folder)
    assert not list(folder.glob("events*"))


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    code = f"{sys.executable} -m proxrl envs | true"
    done = subprocess.run(["sh", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env={})
    assert done.stderr == ""


def test_repeated_environment_arguments_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "FrozenLake-v1", "--env-kwargs", "is_slippery=false", "--env-kwargs", "map_name=8x8", "--print-config"]
    assert main(words) == 0
    assert 'env_kwargs = { "is_slippery" = false, "map_name" = "8x8" }' in capsys.readouterr().out


def test_characters_that_the_output_can_not_encode_are_replaced(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "Ünten-v0", "ppo", 1, [1.0, 2.0])
    for words in (["runs", "runs"], ["compare", "runs"], ["plot", "runs", "--text"]):
        done = run(*words, cwd=tmp_path, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert "?nten-v0" in done.stdout
