"""Runs are found by folder and by name, below any runs folder."""

from pathlib import Path

import pytest

from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder, run_folder
from proxrl.runs.lookup import candidate_folders, find_folder, find_run, find_runs

ENVS = ["CartPole-v1", "ALE/Pong-v5", "odd:hybrid", "my_package.envs:make/small"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(env: str, name: str = "ppo", seed: int = 1, runs_dir: str = "runs") -> Path:
    path = run_folder(Path(runs_dir), env, name, seed)
    with RunFolder(path) as folder:
        folder.create(Config(env=env, name=name, seed=seed))
    return path


@pytest.mark.parametrize("runs_dir", ["runs", "my runs/today"])
@pytest.mark.parametrize("env", ENVS)
def test_a_run_is_found_by_environment_name_and_seed(env: str, runs_dir: str) -> None:
    first, second = (make_run(env, "ppo", seed, runs_dir) for seed in (1, 2))
    only = make_run(env, "wide", 7, runs_dir)
    assert find_run(f"{env}/ppo/seed1", runs_dir).path == first
    assert find_run(f"{env}/ppo/seed2", runs_dir).path == second
    assert find_run(f"{env}/wide", runs_dir).path == only
    assert find_run(f"{runs_dir}/{env}/wide", runs_dir).path == only
    assert [folder.path for folder in find_runs([f"{env}/ppo"], runs_dir)] == [first, second]
    assert [folder.path for folder in find_runs([env], runs_dir)] == [first, second, only]
    assert find_folder(f"{env}/ppo", runs_dir) == first.parent
    with pytest.raises(ProxRLError, match="3 runs are below"):
        find_run(env, runs_dir)


def test_a_run_is_found_by_its_folder_or_one_above(tmp_path: Path) -> None:
    pong = make_run("ALE/Pong-v5")
    for run in (pong, tmp_path / pong, "runs", ".", "ALE-Pong-v5", "ALE-Pong-v5/ppo", "ALE/Pong-v5", f"{pong}/", f"./{pong}"):
        assert find_run(run).path.resolve() == tmp_path / pong, run
        assert [folder.path.resolve() for folder in find_runs([run])] == [tmp_path / pong], run
    other = make_run("ALE/Pong-v5", runs_dir="others")
    assert find_run(other).path == other  # a path needs no --runs-dir
    assert find_run(tmp_path / "others/ALE:Pong-v5", tmp_path / "others").path == tmp_path / other


def test_a_folder_without_runs_does_not_hide_a_run_of_that_name() -> None:
    path = make_run("CartPole-v1")
    Path("CartPole-v1").mkdir()
    assert find_run("CartPole-v1").path == path
    assert [folder.path for folder in find_runs(["CartPole-v1"])] == [path]
    assert find_folder("CartPole-v1") == Path("runs/CartPole-v1")


def test_a_folder_may_be_watched_before_it_has_runs() -> None:
    Path("later").mkdir()
    assert find_folder("later") == Path("later")
    with pytest.raises(ProxRLError, match="there is no folder absent and runs/absent; "):
        find_folder("absent")


def test_an_ambiguous_name_lists_the_runs() -> None:
    for seed in range(7):
        make_run("CartPole-v1", seed=seed)
    with pytest.raises(ProxRLError) as error:
        find_run("CartPole-v1")
    assert str(error.value).startswith("7 runs are below runs/CartPole-v1; name one of runs/CartPole-v1/ppo/seed0, ")
    assert str(error.value).count("seed") == 5
    assert str(error.value).endswith("and 2 more")


@pytest.mark.parametrize("find", [find_run, lambda run, runs_dir: find_runs([run], runs_dir)])
def test_the_error_names_the_folders_that_were_searched(find) -> None:  # type: ignore[no-untyped-def]
    make_run("odd:hybrid", runs_dir="mine")
    with pytest.raises(ProxRLError) as error:
        find("odd:hybrid/ppo/seed9", "mine")
    searched = "searched odd:hybrid/ppo/seed9, mine/odd:hybrid/ppo/seed9 and mine/odd-hybrid/ppo/seed9"
    assert str(error.value) == f"no run at 'odd:hybrid/ppo/seed9': {searched}; did you mean odd-hybrid?"
    with pytest.raises(ProxRLError, match=r"no run at 'absent': searched absent and mine/absent; .*--runs-dir"):
        find("absent", "mine")


def test_a_name_that_no_filesystem_takes() -> None:
    for find in (find_run, find_folder, lambda run: find_runs([run])):
        with pytest.raises(ProxRLError, match="can't look for runs"):
            find("x" * 5000)


@pytest.mark.parametrize("path", ["..", "../runs", "/data/runs"])
def test_what_can_only_be_a_path_is_not_looked_for_elsewhere(path: str) -> None:
    assert candidate_folders(path) == [Path(path)]


def test_a_name_of_a_run_comes_before_an_environment_whose_folder_looks_like_it() -> None:
    make_run("odd:hybrid-ppo", "other")
    run = make_run("odd:hybrid", "ppo")
    assert find_run("odd:hybrid/ppo").path == run
