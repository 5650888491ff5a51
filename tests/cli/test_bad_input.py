"""Errors are one line that says what to do, with a non-zero exit code, no traceback, and an unchanged checkpoint."""

import os
import pickle
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.numpy

import proxrl
from commands import SMALL, SUPPORT, run, saved, start, steps, wait_for
from disks import mounted
from proxrl.cli import main

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs a command in an empty folder and returns its one-line error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        capfd.readouterr()
        code = main(words)
        out, err = capfd.readouterr()
        assert code == 2, err
        assert out == "" or "--quiet" not in words
        return only_line(err)

    return call


def only_line(err: str) -> str:
    assert err.startswith("proxrl: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a short finished run."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "odd_envs:Odd", *SMALL, "--total-steps", "64", "--quiet"]) == 0
    return tmp_path / "runs/odd_envs-Odd/ppo/seed1"


RESUME = ("train", "odd_envs:Odd", *SMALL, "--total-steps", "128", "--quiet")


def test_folders_that_can_not_exist(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "runs/CartPole-v1").mkdir(parents=True)  # so that looking for an earlier run gets as far as the name
    assert "--name has 300 characters" in refused("train", "CartPole-v1", "--name", "x" * 300)
    assert "File name too long; use another --runs-dir" in refused("train", "CartPole-v1", "--runs-dir", "x" * 300)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], ["no command 'trian'", "did you mean train?", "--help"]),
        (["train"], ["no environment is given", "proxrl train CartPole-v1"]),
        (["train", "CartPol-v1"], ["unknown environment 'CartPol-v1'", "did you mean CartPole-v1"]),
        (["train", "cartpole"], ["CartPole-v1"]),
        (["train", "NothingLikeThis-v9"], ["unknown environment", "proxrl envs"]),
        (["train", "Ant-v2"], ["Ant-v4"]),
        (["train", "CartPole-v1", "--lerning-rate", "1"], ["no flag --lerning-rate", "did you mean --learning-rate?"]),
        (["train", "CartPole-v1", "--clobbr"], ["did you mean --clobber?"]),
        (["eval", "run", "--episode", "3"], ["did you mean --episodes?"]),
        (["train", "CartPole-v1", "left over"], ["left over"]),
        (["train", "CartPole-v1", "--num-minibatches", "3"], ["--num-minibatches 3", "batch of 256", "use 1 or 2 or 4"]),
        (["train", "CartPole-v1", "--num-envs", "1000000", "--num-minibatches", "7"], ["--num-minibatches 7"]),
        (
            ["train", "CartPole-v1", "--num-minibatches", "256"],
            ["minibatch of one step", "--num-minibatches 256", "at most half"],
        ),
        (["train", "CartPole-v1", "--num-envs", "1", "--rollout-steps", "1"], ["batch of one step", "--rollout-steps"]),
        (["train", "CartPole-v1", "--gamma", "1.5"], ["--gamma is 1.5", "at most 1"]),
        (["train", "CartPole-v1", "--gae-lambda", "-0.1"], ["--gae-lambda is -0.1", "at least 0"]),
        (["train", "CartPole-v1", "--clip", "0"], ["--clip is 0.0", "greater than 0"]),
        (["train", "CartPole-v1", "--target-kl", "0"], ["--target-kl is 0.0", "greater than 0"]),
        (["train", "CartPole-v1", "--learning-rate", "-1"], ["--learning-rate is -1.0", "greater than 0"]),
        (["train", "CartPole-v1", "--learning-rate", "nan"], ["--learning-rate is nan"]),
        (["train", "CartPole-v1", "--entropy-coef", "inf"], ["--entropy-coef is inf"]),
        (["train", "CartPole-v1", "--learning-rate", "fast"], ["--learning-rate is 'fast'", "a number"]),
        (["train", "CartPole-v1", "--learning-rate"], ["--learning-rate", "expected one argument"]),
        (["train", "CartPole-v1", "--value-clip", "wide"], ["--value-clip is 'wide'", "a number, linear"]),
        (["train", "CartPole-v1", "--num-envs", "0"], ["--num-envs is 0", "at least 1"]),
        (["train", "CartPole-v1", "--num-envs", "1.5"], ["--num-envs is '1.5'", "whole number"]),
        (["train", "CartPole-v1", "--num-envs", "inf"], ["--num-envs is 'inf'", "whole number"]),
        (["train", "CartPole-v1", "--total-steps", "many"], ["--total-steps is 'many'", "whole number"]),
        (["train", "CartPole-v1", "--seed", "-1"], ["--seed is -1", "at least 0"]),
        (["train", "CartPole-v1", "--hidden-sizes", "64,64"], ["--hidden-sizes", "whole numbers"]),
        (["train", "CartPole-v1", "--hidden-sizes", "64", "0"], ["--hidden-sizes is 0", "at least 1"]),
        (["train", "CartPole-v1", "--total-steps", "1e23"], ["--total-steps 99,999", "3,170,979,198 years"]),
        (["train", "CartPole-v1", "--num-envs", "100000000"], ["--num-envs 100,000,000 x --rollout-steps", "TiB of memory"]),
        (["train", "CartPole-v1", "--rollout-steps", "1000000000"], ["x --rollout-steps 1,000,000,000", "TiB of memory"]),
        (["train", "CartPole-v1", "--num-envs", "10000000001", "--rollout-steps", "1001"], ["GiB of memory", "batch of 10,010"]),
        (["train", "CartPole-v1", "--hidden-sizes", "10000000"], ["--hidden-sizes is 10000000", "at most 1000000"]),
        (["train", "CartPole-v1", "--hidden-sizes", "1000000", "1000000"], ["--hidden-sizes 1000000 1000000", "TiB of memory"]),
        (
            ["train", "CartPole-v1", "--vector", "workers", "--num-workers", "1000000", "--num-envs", "1000000"],
            ["1,000,000 processes", "TiB of memory", "use fewer environments"],
        ),
        (["train", "CartPole-v1", "--name", "x" * 300], ["--name has 300 characters", "at most 200"]),
        (["train", "CartPole-v1", "--name", "a/b"], ["--name 'a/b'"]),
        (["train", "CartPole-v1", "--device", "toaster"], ["--device toaster", "--device cpu"]),
        (["train", "CartPole-v1", "--engine", "steam"], ["--engine", "torch"]),
        (["train", "CartPole-v1", "--vector", "sideways"], ["--vector", "inprocess", "workers", "envpool"]),
        (["train", "HalfCheetah-v5", "--vector", "native"], ["HalfCheetah-v5", "--vector inprocess"]),
        (["train", "odd_envs:Odd", "--vector", "native"], ["odd_envs:Odd", "--vector inprocess"]),
        (["train", "odd_envs:Odd", "--vector", "envpool"], ["--vector inprocess"]),
        (["train", "CartPole-v1", "--env-kwargs", "wheels=3"], ["CartPole-v1", "wheels", "--env-kwargs wheels=3"]),
        (["train", "CartPole-v1", "--env-kwargs", "wheels"], ["key=value", "'wheels'"]),
        (["train", "CartPole-v1", "--env-kwargs", "render_mode=null"], ["--env-kwargs render_mode=None", "leave it out"]),
        (
            ["train", "odd_envs:TupleObs"],
            ["another structure than observation_space", "[observation-structure]"],
        ),
        (["train", "odd_envs:OutsideObs"], ["observation -1 in step 7", "not in MultiDiscrete"]),
        (["train", "odd_envs:EmptyObs"], ["is empty; give it at least one entry"]),
        (["train", "odd_envs:TextObs"], ["Text", "wrap", "MultiDiscrete"]),
        (["train", "odd_envs:GraphObs"], ["Graph", "wrap", "Dict of Boxes"]),
        (["train", "odd_envs:SequenceObs"], ["Sequence", "wrap", "padded"]),
        (["train", "odd_envs:TextAction"], ["Text", "wrap", "MultiDiscrete"]),
        (["train", "odd_envs:WholeNumberAction"], ["action space Box", "wrap"]),
        (["train", "odd_envs:not_an_env"], ["must return a gymnasium.Env"]),
        (["train", "odd_envs:number"], ["no callable 'number'"]),
        (["train", "odd_envs:Even"], ["no callable 'Even'"]),
        (["train", "no_such_module:make"], ["no module 'no_such_module'"]),
        (["train", "broken_module:make"], ["importing 'broken_module' failed", "no_such_package"]),
        (["train", "garbled_module:make"], ["importing 'garbled_module' failed", "SyntaxError"]),
        (["train", "odd_envs:Odd", "--env-kwargs", "fault=reset"], ["failed in reset: RuntimeError: the wheel came off"]),
        (["train", "odd_envs:Odd", "--env-kwargs", "fault=step"], ["failed in step: RuntimeError: the wheel came off"]),
        (["train", "odd_envs:Odd", "--env-kwargs", "fault=exit"], ["failed in step: SystemExit: 3"]),
        (["train", "CartPole-v1", "--preset", "fancy"], ["no preset 'fancy'", "classic", ".toml"]),
        (["train", "CartPole-v1", "--preset", "fancy.toml"], ["can't read the preset fancy.toml"]),
        (["train", "CartPole-v1", "--preset", "garbled.toml"], ["garbled.toml is not valid TOML"]),
        (["train", "CartPole-v1", "--preset", "sourceless.toml"], ["sourceless.toml", "gamma", "source"]),
        (["train", "CartPole-v1", "--preset", "flat.toml"], ["flat.toml", "[values]"]),
        (["train", "CartPole-v1", "--preset", "unknown.toml"], ["no setting 'gama'"]),
        (["train", "CartPole-v1", "--preset", "range.toml"], ["--gamma is 2.0"]),
        (["eval", "nowhere"], ["no run at 'nowhere'", "'proxrl runs' lists"]),
        (["eval", "empty"], ["no run at 'empty'"]),
        (["eval", "empty", "--episodes", "0"], ["--episodes is 0", "at least 1"]),
        (["eval", "empty", "--episodes", "few"], ["--episodes", "'few'"]),
        (["eval", "empty", "--seed", "-1"], ["--seed is -1", "at least 0"]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else None,
)
def test_errors_say_what_to_do(words: list[str], says: list[str], tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken_module.py").write_text("import no_such_package\n")
    (tmp_path / "garbled_module.py").write_text("def (\n")
    (tmp_path / "garbled.toml").write_text("[values\n")
    (tmp_path / "sourceless.toml").write_text("[values]\ngamma = 0.9\n")
    (tmp_path / "flat.toml").write_text('env = "CartPole-v1"\ngamma = 0.9\n')  # what --print-config prints
    (tmp_path / "unknown.toml").write_text('[values]\ngama = { value = 0.9, source = "me" }\n')
    (tmp_path / "range.toml").write_text('[values]\ngamma = { value = 2, source = "me" }\n')
    line = refused(*words, *(("--quiet",) if words[0] == "train" and len(words) > 1 else ()))
    for word in says:
        assert word in line


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
@pytest.mark.parametrize(("fault", "words"), [("nan", "observation nan"), ("inf", "reward inf")])
def test_nan_and_infinity_name_the_environment(vector: str, fault: str, words: str, refused: Refused) -> None:
    import odd_envs

    odd_envs.Odd.made = 0
    kwargs = ("--env-kwargs", f"fault={fault}", "worst=1", "at=7")
    line = refused("train", "odd_envs:Odd", *SMALL, "--vector", vector, "--num-workers", "1", *kwargs, "--quiet")
    assert re.search(rf"environment 1 gave the {words} in step 7", line)


def test_a_module_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("from odd_envs import Odd\n\ndef make(at):\n    return Odd(fault='step', at=at, worst=0)\n")
    done = run("train", "here:make", "--env-kwargs", "at=3", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "environment 0 failed in step: RuntimeError: the wheel came off" in only_line(done.stderr)


def test_debug_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", "odd_envs:Odd", *SMALL, "--env-kwargs", "fault=step", "--quiet", "--debug")
    assert main(words) == 2
    err = capfd.readouterr().err
    assert "Traceback" in err
    assert "odd_envs.py" in err
    assert "direct cause" in err


def test_debug_shows_the_traceback_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "train",
        "odd_envs:Odd",
        *SMALL,
        "--vector",
        "workers",
        "--num-workers",
        "1",
        "--env-kwargs",
        "fault=step",
        "--quiet",
    )
    assert main(words) == 2
    only_line(capfd.readouterr().err)
    assert main([*words, "--debug"]) == 2
    err = capfd.readouterr().err
    assert "in worker 0 (environments 0-1):" in err
    assert 'raise RuntimeError("the wheel came off' in err


def test_workers_that_fail_at_the_same_time_print_one_line(refused: Refused) -> None:
    words = ("--vector", "workers", "--num-workers", "2", "--env-kwargs", "fault=reset", "--quiet")
    assert "environment 0 failed in reset" in refused("train", "odd_envs:Odd", *SMALL, *words)


def test_missing_extras_print_the_pip_line(tmp_path: Path) -> None:
    """Packages are hidden from the import system, as if they were not installed."""
    code = """
import importlib.machinery, sys
hidden = ("Box2D", "mujoco", "envpool", "wandb")
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in hidden else find(name, *rest)
from proxrl.cli import main
for words in (["LunarLander-v3"], ["HalfCheetah-v4"], ["dm_control/cheetah-run-v0"], ["WalkerWalk-v1"],
              ["CartPole-v1", "--vector", "envpool"], ["CartPole-v1", "--wandb"]):
    assert main(["train", *words, "--quiet", "--total-steps", "8"]) == 2, words
main(["envs"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    extras = ["box2d", "mujoco", "dm_control", "dm_control", "envpool", "wandb"]
    assert len(lines) == len(extras)
    for line, extra in zip(lines, extras, strict=True):
        assert f"pip install 'proxrl[{extra}]'" in line
    for extra in ("box2d", "mujoco", "dm_control"):
        assert f"pip install 'proxrl[{extra}]'" in done.stdout


# --- run folders and checkpoints ------------------------------------------------------------------------------------------


def test_eval_of_a_missing_checkpoint(finished: Path, refused: Refused) -> None:
    assert "no checkpoint 'step-7'; it has latest" in refused("eval", str(finished), "--checkpoint", "step-7")
    (finished / "checkpoints/latest.safetensors").unlink()
    assert "it has none yet" in refused("eval", str(finished))


def test_eval_of_an_ambiguous_name_lists_the_runs(finished: Path, refused: Refused) -> None:
    assert main(["train", "odd_envs:Odd", *SMALL, "--total-steps", "64", "--quiet", "--seed", "2"]) == 0
    line = refused("eval", "odd_envs:Odd")
    assert str(finished.relative_to(Path.cwd())) in line
    assert "seed2" in line


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "pickle", "foreign", "folder"])
def test_damaged_checkpoints_and_files_of_other_programs(damage: str, finished: Path, refused: Refused) -> None:
    path = finished / "checkpoints/latest.safetensors"
    data = path.read_bytes()
    content = {
        "flipped": data[:-9] + bytes([data[-9] ^ 255]) + data[-8:],
        "short": data[:-100],
        "empty": b"",
        "pickle": pickle.dumps({"weights": [1.0]}),
        "foreign": safetensors.numpy.save({}),
        "folder": None,
    }[damage]
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert "latest.safetensors" in refused(*RESUME)
    assert "latest.safetensors" in refused("eval", str(finished))
    if damage in ("flipped", "short", "empty"):
        assert "delete that file to start over from step 0" in refused(*RESUME)
    if content is not None:
        assert path.read_bytes() == content  # only the user may delete it
    assert main([*RESUME, "--clobber"]) == (0 if content is not None else 2)


def test_a_damaged_latest_beside_intact_checkpoints(finished: Path, refused: Refused) -> None:
    latest = finished / "checkpoints/latest.safetensors"
    for name in ("best", "step-32"):
        latest.with_stem(name).write_bytes(latest.read_bytes())
    latest.write_bytes(latest.read_bytes()[:-9])
    assert "use --checkpoint best (step 64) or --checkpoint step-32 (step 64)" in refused("eval", str(finished))
    assert "delete that file to resume from best at step 64" in refused(*RESUME)
    latest.unlink()
    assert main(RESUME) == 0
    assert saved(finished)[1]["step"] == 128


def test_damaged_config(finished: Path, refused: Refused) -> None:
    (finished / "config.toml").write_text("gamma = ")
    assert "config.toml" in refused("eval", str(finished))
    assert "config.toml" in refused(*RESUME)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--gamma", "0.9"], "--gamma"),
        (["--num-envs", "4"], "--num-envs"),
        (["--hidden-sizes", "9"], "--hidden-sizes"),
        (["--env-kwargs", "at=3"], "--env-kwargs"),
        (["--target-kl", "0.1"], "--target-kl"),
        (["--vector", "workers"], "--vector"),
    ],
)
def test_the_error_names_a_changed_setting(words: list[str], flag: str, finished: Path, refused: Refused) -> None:
    before = (finished / "checkpoints/latest.safetensors").read_bytes(), (finished / "config.toml").read_bytes()
    line = refused(*RESUME, *words)
    assert f"{flag} is {' '.join(words[1:])}" in line
    assert "--clobber" in line
    assert ((finished / "checkpoints/latest.safetensors").read_bytes(), (finished / "config.toml").read_bytes()) == before


@pytest.mark.parametrize(
    ("first", "then", "advice"),
    [
        (["--env-kwargs", "at=3"], ["--env-kwargs", "at=4"], "give --env-kwargs at=3 to resume"),
        ([], ["--env-kwargs", "at=4"], "leave out --env-kwargs to resume"),
        (["--normalize-rewards"], ["--no-normalize-rewards"], "give --normalize-rewards to resume"),
        (["--no-normalize-rewards"], ["--normalize-rewards"], "give --no-normalize-rewards to resume"),
    ],
)
def test_the_advice_for_a_changed_setting(first: list[str], then: list[str], advice: str, refused: Refused) -> None:
    assert main([*RESUME, *first]) == 0
    assert advice in refused(*RESUME, *then)


def test_settings_may_change_while_there_is_no_checkpoint(refused: Refused) -> None:
    assert "wheels" in refused("train", "CartPole-v1", *SMALL, "--env-kwargs", "wheels=3", "--quiet")
    assert main(["train", "CartPole-v1", *SMALL, "--total-steps", "64", "--quiet"]) == 0


def test_a_changed_environment_is_rejected(finished: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    from gymnasium import spaces

    import odd_envs

    monkeypatch.setattr(odd_envs.Odd, "observation_space", spaces.Box(-1, 1, (4,)))
    line = refused(*RESUME)
    assert "observation space is Box(-1.0, 1.0, (4,), float32), but the policy was trained with" in line
    assert "--name" in line
    assert saved(finished)[1]["step"] == 64


def test_a_folder_in_which_another_process_trains(tmp_path: Path, refused: Refused) -> None:
    other = start(*RESUME, cwd=tmp_path, ODD_SECONDS="0.5")
    try:
        folder = tmp_path / "runs/odd_envs-Odd/ppo/seed1"
        wait_for((folder / "status.json").exists)
        line = refused(*RESUME)
        assert f"process {other.pid} is already training" in line
        assert "--name" in line
    finally:
        other.kill()
        other.communicate()
    assert main(RESUME) == 0  # the lock ended with the process


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem that is full after a few checkpoints."""
    with mounted(tmp_path / "disk", "size=160k") as folder:
        yield folder


def test_full_disk(tiny_disk: Path, refused: Refused) -> None:
    words = ("train", "odd_envs:Odd", *SMALL, "--quiet", "--runs-dir", str(tiny_disk))
    line = refused(*words, "--total-steps", "100000", "--save-every", "32")
    assert "No space left on device" in line
    assert str(tiny_disk) in line
    folder = tiny_disk / "odd_envs-Odd/ppo/seed1"
    step = saved(folder)[1]["step"]
    assert step >= 32
    assert proxrl.load(folder).step == step
    for surplus in (folder / "checkpoints").glob("step-*"):
        surplus.unlink()
    assert main([*words, "--total-steps", str(step + 64)]) == 0  # there is space again
    assert steps(folder) == list(range(32, step + 65, 32))


def test_file_size_limit(tmp_path: Path) -> None:
    """As under a quota or a batch system; unlike a full disk, this can be tested without root."""
    words = ("train", "odd_envs:Odd", *SMALL, "--total-steps", "100000", "--save-every", "32", "--quiet")
    process = subprocess.Popen(
        [sys.executable, "-m", "proxrl", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "File too large" in only_line(err)
    folder = tmp_path / "runs/odd_envs-Odd/ppo/seed1"
    step = saved(folder)[1]["step"]
    assert step >= 32
    assert main(["eval", str(folder), "--episodes", "2"]) == 0


def test_a_runs_dir_that_is_a_file(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "taken").write_text("mine")
    assert "taken" in refused("train", "CartPole-v1", "--quiet", "--runs-dir", "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("fault", "words"), [("nan-at-reset", "observation nan in step 0"), ("nan-at-the-end", "last observation nan")]
)
def test_nan_at_the_start_and_end_of_an_episode(fault: str, words: str, refused: Refused) -> None:
    import odd_envs

    odd_envs.Odd.made = 0
    line = refused("train", "odd_envs:Odd", *SMALL, "--env-kwargs", f"fault={fault}", "worst=1", "--total-steps", "96", "--quiet")
    assert f"environment 1 gave the {words}" in line


def test_clobber_deletes_nothing_if_the_new_run_can_not_be_built(refused: Refused) -> None:
    words = ("train", "CartPole-v1", *SMALL, "--total-steps", "64", "--quiet", "--no-tensorboard")
    assert main(words) == 0
    latest = Path("runs/CartPole-v1/ppo/seed1/checkpoints/latest.safetensors")
    before = latest.read_bytes()
    refused(*words, "--clobber", "--device", "nonsense")
    refused(*words, "--clobber", "--env-kwargs", "nonsense=1")
    assert latest.read_bytes() == before
