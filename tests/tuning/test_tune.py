"""Tuning: search spaces, studies without training, studies that train, interruptions, and results."""

import json
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import proxrl
from commands import children, is_alive, run, start, wait_for
from proxrl.cli import main
from proxrl.config import Config
from proxrl.config.presets import load_preset, preset_names
from proxrl.config.resolve import resolve
from proxrl.envs.registry import FAMILIES, Family
from proxrl.errors import ProxRLError
from proxrl.runs.folder import RunFolder
from proxrl.tuning.space import draw, load_space, read_space, starting_point
from proxrl.tuning.study import PRUNE_AFTER, PRUNE_FROM, REPORTS_PER_RUN, Study, StudyFolder

optuna = pytest.importorskip("optuna")
SMALL = ("--num-envs", "2", "--rollout-steps", "20", "--num-minibatches", "2", "--epochs", "2", "--hidden-sizes", "8")
SETTINGS = {"num_envs": 2, "rollout_steps": 20, "num_minibatches": 2, "epochs": 2, "hidden_sizes": [8]}
LEVER = "tune_envs:Lever"


def trials_of(folder: Path, name: str = "tune") -> list[Any]:
    return list(optuna.load_study(study_name=name, storage=f"sqlite:///{folder}/study.sqlite3").trials)


def states(folder: Path) -> list[str]:
    return [trial.state.name for trial in trials_of(folder)]


def search_file(folder: Path, text: str) -> str:
    path = folder / "search.toml"
    path.write_text(f"[search]\n{text}\n")
    return str(path)


def example_config(family: Family, env: str) -> Config:
    settings = load_preset(family.preset, env)
    return Config(env=env, **{name: setting.value for name, setting in settings.items()})


# The search space.


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_sample_from_every_preset_is_a_valid_config(family: Family) -> None:
    space = load_space(family.preset, family.preset, None, ())
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    for env in family.examples:
        base = example_config(family, env)
        configs = []
        for _ in range(50):
            settings = draw(space, study.ask(), base)
            config = base.replace(**settings).validate()
            assert config.minibatch_size >= 16
            configs.append(config)
        for name in space.keys() - {"minibatch_size"}:
            assert len({getattr(config, name) for config in configs}) > 1, f"{name} never varies"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_preset_lies_in_its_own_search_space(family: Family) -> None:
    """So the first trial is the preset itself, and the best trial can't be worse."""
    space = load_space(family.preset, family.preset, None, ())
    for env in family.examples:
        base = example_config(family, env)
        point = starting_point(space, base)
        assert point.keys() == space.keys()
        study = optuna.create_study()
        study.enqueue_trial(point)
        assert base.replace(**draw(space, study.ask(), base)) == base


@pytest.mark.parametrize("name", preset_names())
def test_every_range_has_a_source(name: str) -> None:
    from proxrl.config.presets import read_preset

    for entry in read_preset(name)["search"].values():
        assert len(entry["source"].strip()) > 3


def test_the_complement_is_sampled_on_a_log_scale() -> None:
    space = read_space({"search": {"gamma": {"low": 0.9, "high": 0.9999, "scale": "complement", "source": "x"}}}, "here")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    gammas = sorted(draw(space, study.ask(), Config())["gamma"] for _ in range(300))
    assert 0.9 <= gammas[0] < 0.91
    assert 0.9998 < gammas[-1] <= 0.9999
    # The range from 0.1 to 0.0001 spans three decades; 1 - 0.1 ** 2.5 is its middle.
    assert 0.995 < gammas[150] < 0.9985


def test_minibatch_size_becomes_a_divisor_of_the_batch() -> None:
    space = read_space({"search": {"minibatch_size": {"choices": [64, 256], "source": "x"}}}, "here")
    for num_envs, size, expected in ((3, 64, 6), (3, 256, 1), (1, 256, 1), (4, 64, 8), (5, 64, 10)):
        study = optuna.create_study()
        study.enqueue_trial({"minibatch_size": size})
        base = Config(num_envs=num_envs, rollout_steps=128)
        assert draw(space, study.ask(), base) == {"num_minibatches": expected}


def test_a_file_changes_the_search_space_and_flags_fix_settings(tmp_path: Path) -> None:
    file = Path(
        search_file(
            tmp_path, 'num_minibatches = { choices = [2, 4], source = "x" }\nclip = { low = 0.1, high = 0.15, source = "x" }'
        )
    )
    space = load_space("classic", "classic", file, ("gamma", "epochs"))
    assert "minibatch_size" not in space
    assert str(space["num_minibatches"]) == "one of 2, 4"
    assert str(space["clip"]) == "0.1 to 0.15 (linear)"
    assert not {"gamma", "epochs"} & space.keys()
    assert "learning_rate" in space
    assert "minibatch_size" not in load_space("classic", "classic", None, ("num_minibatches",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gama = { choices = [1], source = 'x' }", "no such setting"),
        ("seed = { choices = [1, 2], source = 'x' }", "must share it"),
        ("gamma = 0.5", "must give gamma as { low"),
        ("gamma = { choices = [], source = 'x' }", "must give gamma as { low"),
        ("gamma = { choices = [0.9] }", "must give gamma as { low"),
        ("gamma = { choices = [0.9, 2.0], source = 'x' }", "--gamma is 2.0, but must be"),
        ("gamma = { low = 0.9, high = 1.0, scale = 'complement', source = 'x' }", "high must be below 1"),
        ("gamma = { low = 0.9, high = 0.8, source = 'x' }", "low below high"),
        ("clip = { low = 'off', high = 0.8, source = 'x' }", "low below high"),
        ("entropy_coef = { low = 0.0, high = 0.1, scale = 'log', source = 'x' }", "low must be above 0"),
        ("epochs = { low = 1, high = 9, scale = 'complement', source = 'x' }", "must be one of linear, log"),
        ("activation = { low = 1, high = 2, source = 'x' }", "is not a number; give choices"),
        ("minibatch_size = { choices = [1], source = 'x' }", "at least 2"),
        (
            "num_minibatches = { choices = [4], source = 'x' }\nminibatch_size = { choices = [64], source = 'x' }",
            "search only one of them",
        ),
        ("", "has no table"),
        ("[", "can't read"),
    ],
)
def test_invalid_search_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ProxRLError, match=message.replace("(", r"\(")) as caught:
        load_space("classic", "classic", Path(search_file(tmp_path, text)), ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1", "--trials", "0"), "--trials is 0, but must be at least 1"),
        (("CartPole-v1", "--workers", "0"), "--workers is 0"),
        (("CartPole-v1", "--timeout", "0"), "--timeout is 0"),
        (("CartPole-v1", "--preset", "clasic"), "there is no preset 'clasic'"),
        (("CartPole-v1", "--total-steps", "many"), "--total-steps is 'many'"),
        (("CartPole-v1", "--study", "../x"), "--study '../x' can't be a folder name"),
        (("CartPole-v1", "--search", "nowhere.toml"), "can't read nowhere.toml"),
        (("CartPole-v1", "--gamma", "3"), "--gamma is 3.0"),
        (("CartPoll-v1",), "did you mean CartPole-v1"),
        ((), "ENV"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.sqlite3"))


def test_without_optuna_the_error_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ProxRLError, match=r"pip install 'proxrl\[tune\]'"):
        proxrl.tune("CartPole-v1")


# Studies without training.


def open_study(folder: StudyFolder, base: Config, **changes: Any) -> Study:
    space = load_space("classic", "classic", None, ())
    return Study(folder, {"--gamma": "0.99"}, space, base, **{"seed": 5, "prune": True, **changes})


def test_trials_below_the_median_are_pruned_but_not_at_once(tmp_path: Path) -> None:
    with StudyFolder(tmp_path, "CartPole-v1", "tune") as folder:
        study = open_study(folder, Config())
        for number in range(PRUNE_AFTER):
            trial, _ = study.begin()
            assert not any(study.report(trial, report, 10.0 * number) for report in (1, PRUNE_FROM, REPORTS_PER_RUN - 1))
            study.complete(trial, 10.0 * number)
        poor, _ = study.begin()
        pruned = [study.report(poor, report, 1.0) for report in range(1, PRUNE_FROM + 1)]
        assert pruned == [False] * (PRUNE_FROM - 1) + [True]
        study.give_up(poor, "pruned")
        good, _ = study.begin()
        assert not any(study.report(good, report, 30.0) for report in (PRUNE_FROM, REPORTS_PER_RUN - 1))
        assert states(folder.path) == ["COMPLETE"] * PRUNE_AFTER + ["PRUNED", "RUNNING"]


def test_an_interrupted_study_samples_the_same_settings(tmp_path: Path) -> None:
    def run_study(folder: StudyFolder, interruptions: tuple[int, ...]) -> list[dict[str, Any]]:
        sampled: list[dict[str, Any]] = []
        study = open_study(folder, Config())
        while len(study.done()) < 14:
            trial, settings = study.begin()
            index = trial.user_attrs["index"]
            study.report(trial, 1, float(index))
            if index in interruptions and len(sampled) == index:
                sampled.append(settings)
                study = open_study(folder, Config())  # as in a new process after the first one was killed
                continue
            study.complete(trial, settings["learning_rate"] * index)
            if len(sampled) > index:
                assert sampled[index] == settings
            else:
                sampled.append(settings)
        assert [trial.user_attrs["index"] for trial in study.done()] == list(range(14))
        return sampled

    with StudyFolder(tmp_path, "one", "tune") as one, StudyFolder(tmp_path, "two", "tune") as two:
        assert run_study(one, ()) == run_study(two, (0, 3, 12))
        assert states(two.path).count("FAIL") == 3
        assert not {"RUNNING", "WAITING"} & set(states(two.path))


def test_a_damaged_database_is_a_one_line_error(tmp_path: Path) -> None:
    with StudyFolder(tmp_path, "CartPole-v1", "tune") as folder:
        folder.database.write_bytes(b"not a database" * 100)
        with pytest.raises(ProxRLError, match=r"can't use .*study.sqlite3 .*--clobber"):
            open_study(folder, Config())


# Studies that train.


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run three trials of two seeds with two workers and some fixed settings, on an environment in the current folder."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "mine.py").write_text("from tune_envs import Lever\n\nprint('noise')\n")
    arguments = (
        "mine:Lever",
        "--trials",
        "3",
        "--workers",
        "2",
        "--seeds",
        "2",
        "--total-steps",
        "400",
        "--env-kwargs",
        "pays=0",
    )
    done = run("tune", *arguments, *SMALL[:6], "--gamma", "0.9", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


def test_a_study_with_two_workers_completes_all_trials(tuned: tuple[Path, str]) -> None:
    folder, out = tuned
    study = folder / "studies/mine-Lever/tune"
    assert states(study) == ["COMPLETE"] * 3
    for trial in trials_of(study):
        runs = [study / f"runs/mine-Lever/trial-{trial.user_attrs['index']}/seed{seed}" for seed in (1, 2)]
        returns = [json.loads((path / "status.json").read_text())["mean_return"] for path in runs]
        assert trial.value == pytest.approx(sum(returns) / 2)
        assert [RunFolder(path).config().seed for path in runs] == [1, 2]
        assert RunFolder(runs[0]).config().env_kwargs == {"pays": 0}
    pids = {json.loads(path.read_text())["pid"] for path in study.glob("runs/*/*/*/status.json")}
    assert len(pids) == 2
    best = max(trial.value for trial in trials_of(study))
    lines = out.splitlines()
    assert sum(line.startswith("trial ") and "/3" in line for line in lines) == 3
    assert f"best {best:,.1f}" in next(line for line in lines if "3/3" in line)
    assert (
        lines[-1]
        == "Wrote studies/mine-Lever/tune/best.toml; next: proxrl train mine:Lever --preset studies/mine-Lever/tune/best.toml"
    )
    assert out.count("noise") == 1, "the output of workers goes to their logs"


def test_the_first_trial_is_the_preset_itself(tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tuned[0])
    fixed = {"env_kwargs": {"pays": 0}, "num_envs": 2, "rollout_steps": 20, "gamma": 0.9, "num_minibatches": 2}
    expected = resolve("mine:Lever", {**fixed, "total_steps": 400, "name": "trial-0"}).config
    first = RunFolder(tuned[0] / "studies/mine-Lever/tune/runs/mine-Lever/trial-0/seed1").config()
    assert first == expected.replace(seed=1)


def test_the_best_preset_repeats_the_best_trial(tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tuned[0])
    study = tuned[0] / "studies/mine-Lever/tune"
    best = max(trials_of(study), key=lambda trial: trial.value)
    index = best.user_attrs["index"]
    trained = RunFolder(study / f"runs/mine-Lever/trial-{index}/seed1").config()
    resolved = resolve("mine:Lever", {}, str(study / "best.toml"))
    assert resolved.config.total_steps == resolve("mine:Lever", {}).config.total_steps
    assert resolved.config.replace(total_steps=trained.total_steps, name=trained.name, seed=trained.seed) == trained
    assert resolved.sources["learning_rate"].endswith(f"study tune, trial {index}: {best.value:.6g}")
    assert resolved.sources["gamma"].endswith("fixed in study tune")
    assert resolved.sources["value_coef"].endswith("preset default: core detail 10")


def test_more_trials_continue_the_study_and_other_settings_are_refused(
    tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tuned[0])
    study = tuned[0] / "studies/mine-Lever/tune"
    arguments = ["tune", "mine:Lever", "--seeds", "2", "--env-kwargs", "pays=0", *SMALL[:6]]
    file = search_file(tuned[0], "clip = { low = 0.1, high = 0.2, source = 'x' }")
    for changed, message in (
        (["--total-steps", "800", "--gamma", "0.9"], "--total-steps is 800, but was 400 when the study in"),
        (["--total-steps", "400", "--gamma", "0.8"], "--gamma is 0.8, but was 0.9 when"),
        (["--total-steps", "400"], "--gamma is varied, but was 0.9"),
        (["--total-steps", "400", "--gamma", "0.9", "--epochs", "3"], "--epochs is 3, but was varied"),
        (
            ["--total-steps", "400", "--gamma", "0.9", "--search", file],
            "the search of clip is 0.1 to 0.2 (linear), but was 0.1 to 0.4",
        ),
    ):
        assert main([*arguments, *changed, "--trials", "9"]) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert "another --study" in error
        assert error.count("\n") == 1
    assert len(trials_of(study)) == 3
    fixed = {"env_kwargs": {"pays": 0}, "num_envs": 2, "rollout_steps": 20, "num_minibatches": 2, "gamma": 0.9}
    result = proxrl.tune("mine:Lever", seeds=2, total_steps=400, trials=4, quiet=True, **fixed)
    assert states(study) == ["COMPLETE"] * 4
    assert (result.trials, result.score) == (4, max(trial.value for trial in trials_of(study)))
    assert result.settings.keys() >= {"learning_rate", "clip"}
    assert result.preset == Path("studies/mine-Lever/tune/best.toml")
    assert capsys.readouterr().out == ""


def test_plot_reads_the_runs_of_a_study(tuned: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--text", str(tuned[0] / "studies")]) == 0
    assert "trial-2" in capsys.readouterr().out


def test_poor_trials_are_pruned_and_divergence_does_not_end_the_study(tmp_path: Path) -> None:
    file = search_file(tmp_path, 'learning_rate = { choices = [0.003, 0.03, 1e-7, 1e30], source = "x" }')
    space = load_space("default", "default", None, SETTINGS)
    fixed = SETTINGS | {name: getattr(Config(), name) for name in space if name != "learning_rate"}
    result = proxrl.tune(LEVER, search=file, trials=16, total_steps=800, studies_dir=tmp_path, quiet=True, seed=2, **fixed)
    trials = trials_of(result.path)
    assert len(trials) == result.trials == 16
    notes = {trial.user_attrs["note"]: trial for trial in trials if trial.state.name == "PRUNED"}
    assert all(trial.params["learning_rate"] == 1e30 for note, trial in notes.items() if note == "diverged")
    assert "diverged" in notes
    pruned = [trial for note, trial in notes.items() if note.startswith("pruned at")]
    assert pruned
    assert any(trial.params["learning_rate"] == 1e-7 for trial in pruned)
    for trial in pruned:
        status = json.loads((result.path / f"runs/tune_envs-Lever/trial-{trial.number}/seed2/status.json").read_text())
        assert status["state"] == "stopped"
        assert 200 <= status["step"] < 800
    assert result.settings == {"learning_rate": 0.03}
    assert result.score is not None
    assert result.score > 8


def test_an_environment_that_fails_ends_the_study_at_once(tmp_path: Path) -> None:
    arguments = ("odd_envs:Odd", "--env-kwargs", "fault=reset", "--total-steps", "400", *SMALL)
    done = run("tune", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "trial 0 failed: " in done.stderr
    assert "the wheel came off" in done.stderr
    assert states(tmp_path / "studies/odd_envs-Odd/tune") == ["FAIL", "WAITING"]


def both_train(study: Path) -> bool:
    return len([path for path in study.glob("runs/*/*/*/metrics.jsonl") if path.read_text()]) == 2


def test_a_killed_study_leaves_no_process_behind_and_resumes(tmp_path: Path) -> None:
    study = tmp_path / "studies/tune_envs-Lever/tune"
    arguments = ("tune", LEVER, "--trials", "3", "--workers", "2", "--total-steps", "400", *SMALL)
    # So slow that neither trial ends before the kill. The session that resumes them is not slowed down.
    process = start(*arguments, cwd=tmp_path, LEVER_SECONDS="0.2")
    wait_for(lambda: both_train(study))
    second = run(*arguments, cwd=tmp_path)
    assert second.returncode == 2
    assert f"process {process.pid} is already tuning in" in second.stderr
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, workers)), 10)
    assert states(study).count("RUNNING") == 2
    params = {trial.user_attrs["index"]: trial.params for trial in trials_of(study)}

    done = run(*arguments, "--workers", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(states(study)) == ["COMPLETE"] * 3 + ["FAIL"] * 2
    for trial in trials_of(study):
        if trial.state.name == "COMPLETE" and trial.user_attrs["index"] in params:
            assert trial.params == params[trial.user_attrs["index"]]
    assert sorted(path.name for path in study.glob("runs/*/*")) == ["trial-0", "trial-1", "trial-2"]


def test_a_terminated_study_saves_its_trials_and_a_killed_worker_does_not_end_it(tmp_path: Path) -> None:
    study = tmp_path / "studies/tune_envs-Lever/tune"
    arguments = ("tune", LEVER, "--trials", "2", "--workers", "2", "--total-steps", "1200", *SMALL)
    process = start(*arguments, cwd=tmp_path, LEVER_SECONDS="0.01")
    wait_for(lambda: both_train(study))
    victim = json.loads((study / "runs/tune_envs-Lever/trial-0/seed1/status.json").read_text())["pid"]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(trials_of(study)) == 3)
    assert process.poll() is None
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "its worker died (killed by signal 9" in out
    assert "Stopped after 0 of 2 trials; the same command resumes." in out
    wait_for(lambda: not any(map(is_alive, workers)), 10)  # a helper process of multiprocessing ends a little later
    assert {trial.user_attrs["index"] for trial in trials_of(study) if trial.state.name == "WAITING"} == {0, 1}
    assert "RUNNING" not in states(study)
    stopped = json.loads((study / "runs/tune_envs-Lever/trial-1/seed1/status.json").read_text())
    assert stopped["state"] == "stopped"
    assert stopped["step"] > 0

    done = run(*arguments, "--workers", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert states(study).count("COMPLETE") == 2
    steps = [
        json.loads(line)["step"] for line in (study / "runs/tune_envs-Lever/trial-1/seed1/metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(40, 1201, 40)), "it resumed from its checkpoint"


def test_a_trial_that_kills_its_worker_twice_fails(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match=r"trial 0 failed: its worker died \(exit code 9"):
        proxrl.tune("tune_envs:Fragile", trials=2, total_steps=400, studies_dir=tmp_path, quiet=True, **SETTINGS)


def test_one_worker_and_one_seed_are_reproducible_and_a_timeout_ends_the_session(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trials": 2, "total_steps": 400, "quiet": True, **SETTINGS}
    one, two = (proxrl.tune(LEVER, studies_dir=tmp_path, study=name, **settings) for name in ("one", "two"))
    assert (one.score, one.settings) == (two.score, two.settings)
    more = proxrl.tune(LEVER, studies_dir=tmp_path, study="one", **{**settings, "trials": 1000, "timeout": 0.5})
    assert 2 <= more.trials < 1000
    assert "RUNNING" not in {trial.state.name for trial in trials_of(more.path, "one")}


def test_clobber_may_start_from_the_best_of_the_same_study_and_deletes_no_other_files(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trials": 1, "total_steps": 400, "studies_dir": tmp_path, "quiet": True, **SETTINGS}
    first = proxrl.tune(LEVER, **settings)
    (first.path / "study.sqlite3.bak").write_text("mine")
    again = proxrl.tune(LEVER, preset=str(first.preset), clobber=True, **settings)
    assert (again.trials, again.score) == (1, first.score)  # the first trial is the preset itself
    assert (first.path / "study.sqlite3.bak").read_text() == "mine"
    assert [trial.state.name for trial in trials_of(again.path)] == ["COMPLETE"]


def test_choices_may_be_tables() -> None:
    entry = 'encoder_kwargs = { choices = [{ width = 8 }, { width = 16 }, { width = 8 }], source = "mine" }'
    space = read_space({"search": tomllib.loads(entry)}, "the file")
    assert len(space["encoder_kwargs"].values) == 2  # type: ignore[union-attr]
