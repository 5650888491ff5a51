"""Every command that takes a run finds it by the same words, below the folder that `--runs-dir` names."""

from pathlib import Path

import pytest

import proxrl
from commands import SMALL
from proxrl.cli import command_names, main, make_parser
from proxrl.export.exporter import export_policy
from proxrl.report.server import Server

# Its folder has another name: there is no colon in it.
ENV = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
WITHOUT_RUNS = {"tune", "check", "bench", "envs"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with two runs below `mine`."""
    folder = tmp_path_factory.mktemp("runs_dir")
    for seed in ("1", "2"):
        words = ["train", ENV, *SMALL, "--total-steps", "64", "--seed", seed, "--quiet", "--no-tensorboard"]
        assert main([*words, "--runs-dir", str(folder / "mine")]) == 0
    return folder


@pytest.mark.parametrize("name", [name for name in command_names() if name not in WITHOUT_RUNS])
def test_every_command_that_names_runs_takes_the_flag(name: str) -> None:
    words = [] if name in ("runs", "watch") else [ENV]
    assert make_parser(name).parse_args([*words, "--runs-dir", "mine"]).runs_dir == Path("mine")
    assert make_parser(name).parse_args(words).runs_dir == Path("runs")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["eval", f"{ENV}/ppo/seed1", "--episodes", "2"], "deterministic"),
        (["record", f"{ENV}/ppo/seed1", "--max-steps", "3"], "Wrote {run}/videos/latest-step64.mp4"),
        (["export", f"{ENV}/ppo/seed1", "--format", "pt2", "--episodes", "0"], "Wrote {run}/export/policy.pt2"),
        (["report", f"{ENV}/ppo/seed1", "--episodes", "0"], "Wrote {run}/report.html"),
        (["plot", f"{ENV}/ppo", "--text"], "ppo, 2 seeds"),
        (["compare", ENV, "--json"], f'"env": "{ENV}"'),
        (["runs"], f"{ENV}  ppo   1-2"),
        (["runs", f"{ENV}/ppo/seed2"], f"{ENV}  ppo   2"),
        (["watch"], "Watching mine at http"),
        (["watch", f"{ENV}/ppo"], "Watching mine/"),
    ],
    ids=lambda value: " ".join(value).replace(ENV, "ENV") if isinstance(value, list) else "",
)
def test_commands_find_runs_below_the_given_folder(
    words: list[str], output: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: Server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", stop)
    monkeypatch.chdir(folder)
    assert main([*words, "--runs-dir", "mine"]) == 0, capsys.readouterr().err
    run = f"mine/{ENV.replace(':', '-')}/ppo/seed1"
    assert output.replace("{run}", run) in capsys.readouterr().out


def test_play_finds_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    assert main(["play", f"{ENV}/ppo/seed1", "--runs-dir", "mine"]) == 2
    assert f"use proxrl record mine/{ENV.replace(':', '-')}/ppo/seed1" in capsys.readouterr().err


def test_python_functions_take_the_same_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run, runs_dir = f"{ENV}/ppo/seed2", "mine"
    assert proxrl.load(run, runs_dir=runs_dir).config.seed == 2
    assert len(proxrl.evaluate(run, runs_dir=runs_dir, episodes=2)["stochastic"].returns) == 2
    assert proxrl.record(run, runs_dir=runs_dir, max_steps=3).path.is_relative_to(Path("mine"))
    assert export_policy(run, runs_dir=runs_dir, format="pt2", episodes=0).path.is_relative_to(Path("mine"))
