"""--seeds and --sweep: what they stand for, how runs are named, and what is refused before anything starts."""

import re
from pathlib import Path
from typing import Any

import pytest

from proxrl.cli import main
from proxrl.many_runs.grid import parse_seeds, parse_sweeps, run_name, value_label
from proxrl.many_runs.room import Room


def names(*words: str, prefix: str = "ppo") -> list[str]:
    return [run_name(prefix, point) for point in parse_sweeps(words)]


def values(word: str) -> list[Any]:
    return [choice.value for (choice,) in parse_sweeps([word])]


def test_seeds_are_numbers_and_ranges() -> None:
    assert parse_seeds(["1", "2", "3"]) == [1, 2, 3]
    assert parse_seeds(["7", "1-3", "5,9"]) == [7, 1, 2, 3, 5, 9]
    assert parse_seeds(["4-4"]) == [4]


def test_runs_are_named_by_what_differs() -> None:
    assert names() == ["ppo"]
    assert names("learning_rate=1e-4,3e-4") == ["ppo-learning_rate=1e-4", "ppo-learning_rate=3e-4"]
    assert names("learning-rate=0.0001,0.00025", "--epochs=2", prefix="mine") == [
        "mine-learning_rate=1e-4,epochs=2",
        "mine-learning_rate=2.5e-4,epochs=2",
    ]
    assert names("clip=off,0.1,linear:0.2:0.05") == ["ppo-clip=off", "ppo-clip=0.1", "ppo-clip=linear-0.2-0.05"]
    assert names("anneal_learning_rate=on,false") == ["ppo-anneal_learning_rate=true", "ppo-anneal_learning_rate=false"]
    assert names("hidden_sizes=64 64,32") == ["ppo-hidden_sizes=64-64", "ppo-hidden_sizes=32"]
    assert names("env_kwargs.map=4x4,a/b..") == ["ppo-env_kwargs.map=4x4", "ppo-env_kwargs.map=a-b"]


def test_every_name_is_a_folder_name_on_every_system() -> None:
    words = ["clip=piecewise:0.2@0,0.1@500,0.3", 'env_kwargs.a\\b?=<x>|"*",[1, 2],c:d.', "encoder=my.module:net"]
    for name in names(*words):
        assert not re.search(r'[/\\:*?"<>|\s\x00-\x1f]', name)
        assert not name.endswith((".", " "))


def test_values_are_parsed_like_flags() -> None:
    assert values("learning_rate=1e-4,0.3") == [1e-4, 0.3]
    assert [str(value) for value in values("clip=piecewise:0.2@0,0.1@500,0.3")] == ["piecewise:0.2@0,0.1@500", "0.3"]
    assert values("clip=off,0.2") == [None, 0.2]
    assert values("normalize_rewards=on,off") == [True, False]
    assert values("hidden_sizes=64 64,8") == [(64, 64), (8,)]
    assert values("env_kwargs.gravity=9.8,true,[1,2],high") == [9.8, True, [1, 2], "high"]
    assert len(parse_sweeps(["gamma=0.9,0.99", "epochs=1,2,3"])) == 6


@pytest.mark.parametrize(
    ("value", "label"),
    [(1e-4, "1e-4"), (0.00025, "2.5e-4"), (0.2, "0.2"), (0.01, "0.01"), (1.0, "1"), (1e6, "1e6"), (0.123456789, "0.123456789")],
)
def test_numbers_have_one_short_spelling(value: float, label: str) -> None:
    assert value_label(value) == label


REFUSED = [
    (["--seeds", "1", "--seed", "2"], "--seed and --seeds both set the seed"),
    (["--seeds", "3", "1-4"], "--seeds names 3 twice"),
    (["--seeds", "5-3"], "not '5-3'"),
    (["--seeds", "one"], "such as 1 2 3 or 1-5, not 'one'; the environment comes first"),
    (["--seeds", "1-99999999999"], "99,999,999,999 runs are more than one command can start"),
    (["--seeds", "1-5000", "--sweep", "gamma=0.9,0.8,0.7"], "15,000 runs"),
    (["--seeds", "1", "2", "--jobs", "0"], "--jobs is 0"),
    (["--seeds", "1", "2", "--world", "mpi"], "leave out --world"),
    (["--jobs", "2"], "--jobs is for several runs"),
    (["--sweep", "lerning_rate=1,2"], "there is no setting 'lerning_rate'; did you mean learning_rate?"),
    (["--sweep", "ent_coef=0,0.1"], "ProxRL calls it entropy_coef"),
    (["--sweep", "seed=1,2"], "can't vary seed: --seeds trains several seeds"),
    (["--sweep", "name=a,b"], "can't vary name"),
    (["--sweep", "env=a,b"], "can't vary env: give one command for each"),
    (["--sweep", "world=solo,mpi"], "can't vary world"),
    (["--sweep", "gamma"], "NAME=VALUE,VALUE"),
    (["--sweep", "gamma=0.9,,0.8"], "a value is missing"),
    (["--sweep", "gamma=0.9,0.90"], "0.9 and 0.90 would be the same run"),
    (["--sweep", "gamma=0.9", "gamma=0.8"], "--sweep names gamma twice"),
    (["--sweep", "gamma=0.9", "--gamma", "0.8"], "--gamma and --sweep both set gamma"),
    (["--sweep", "gamma=0.9,1.5"], "--sweep gamma=1.5: --gamma is 1.5, but must be"),
    (["--sweep", "gamma=0.9,high"], "--gamma is 'high'"),
    (["--sweep", "num_minibatches=2,3"], "--sweep num_minibatches=3: --num-minibatches 3 does not divide"),
    (["--sweep", "env_kwargs=1,2"], "name one of its entries"),
    (["--sweep", "gamma.x=1,2"], "leave out .x"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_what_is_wrong_is_refused_before_anything_starts(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", *words]) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert error.count("\n") == 1
    assert (out, list(tmp_path.iterdir())) == ("", [])


def test_a_launcher_is_refused_by_rank_0_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "CartPole-v1", "--seeds", "1", "2"]) == 2
    assert "start --seeds and --sweep without torchrun" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("proxrl.world.launcher.REPORT_SECONDS", 0)
    assert main(["train", "CartPole-v1", "--seeds", "1", "2"]) == 2
    assert capsys.readouterr().err == ""


def test_print_config_lists_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('env = "CartPole-v1"\nname = "file"\nepochs = 3\nenv_kwargs = { "size" = 3 }\n')
    sweeps = ["--sweep", "gamma=0.9,0.8", "--sweep", "env_kwargs.difficulty=1,2"]
    assert main(["train", "--config", "mine.toml", "--seeds", "2", "4-5", *sweeps, "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# 12 runs:"
    assert lines[1] == "#   runs/CartPole-v1/file-gamma=0.9,env_kwargs.difficulty=1/seed2: new"
    assert lines[12] == "#   runs/CartPole-v1/file-gamma=0.8,env_kwargs.difficulty=2/seed5: new"
    settings = dict(line.split(" = ", 1) for line in lines[13:])
    assert re.fullmatch(r"0\.9 +# sweep: 0\.9, 0\.8", settings["gamma"])
    assert re.fullmatch(r'{ "size" = 3, "difficulty" = 1 } +# sweep: difficulty: 1, 2', settings["env_kwargs"])
    assert re.fullmatch(r"2 +# seeds: 2, 4-5", settings["seed"])
    assert re.fullmatch(r"3 +# file mine.toml", settings["epochs"])
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.toml"]


def test_runs_start_while_the_cores_carry_them() -> None:
    room = Room(None, cores=8)
    assert room.has_room("a", [])
    assert not room.has_room("a", ["a"]), "until the first run says what it needs, it trains alone"
    room.report("a", 3)
    assert room.has_room("a", ["a"])
    assert not room.has_room("a", ["a", "a"])
    assert room.has_room("b", ["a"]), "like the largest that is known"
    room.report("b", 1)
    assert room.has_room("b", ["a", "a", "b"])
    assert room.has_room("c", ["a", "b", "b"])
    assert not room.has_room("c", ["a", "a"])
    assert room.cores_per_run(5) is None, "as if it trained alone"
    room.report("d", 16)
    assert room.has_room("d", []), "one run is always possible"


def test_jobs_overrides_the_number_of_runs_at_a_time() -> None:
    room = Room(3, cores=8)
    assert [room.has_room("a", ["a"] * running) for running in range(4)] == [True, True, True, False]
    assert [room.cores_per_run(runs) for runs in (9, 2, 1)] == [2, 4, 8]
    assert Room(4, cores=2).cores_per_run(4) == 1


def test_output_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/CartPole-v1/ppo"
    folder.mkdir(parents=True)
    (folder / "seed2.log").symlink_to(tmp_path / "precious")
    assert main(["train", "CartPole-v1", "--seeds", "1", "2"]) == 2
    assert "seed2.log is a link" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["seed2.log"]
