"""Run folders are created, resumed or refused; one process at a time uses them; only files of ProxRL are deleted."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from disks import mounted
from proxrl.config import Config
from proxrl.errors import ProxRLError
from proxrl.runs import checkpoint
from proxrl.runs.folder import RunFolder, check_resumable, folder_name, run_folder

CONFIG = Config(env="CartPole-v1", env_kwargs={"sizes": (1, 2)})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(run_folder(tmp_path / "runs", "CartPole-v1", "ppo", 1)) as folder:
        yield folder


def save(folder: RunFolder, name: str, step: int) -> None:
    checkpoint.save(folder.checkpoint_path(name), {"weight": torch.ones(3)}, {"step": step})


def one_line(error: pytest.ExceptionInfo[ProxRLError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("dm_control/cheetah-run-v0", "dm_control-cheetah-run-v0"),
        ("my.module:make", "my.module-make"),
        ("../../etc:make", "-..-etc-make"),
        ("..", "env"),
    ],
)
def test_folder_names_of_environment_ids(env: str, name: str) -> None:
    assert folder_name(env) == name
    assert run_folder(Path("runs"), env, "ppo", 3) == Path("runs") / name / "ppo" / "seed3"


def test_new_run(folder: RunFolder) -> None:
    assert folder.create(CONFIG) is None
    assert folder.config() == CONFIG.replace(env_kwargs={"sizes": [1, 2]})
    assert folder.load_latest() is None
    assert sorted(item.name for item in folder.path.iterdir()) == ["checkpoints", "config.toml", "run.lock"]


def test_same_command_resumes(folder: RunFolder) -> None:
    folder.create(CONFIG)
    save(folder, "latest", 512)
    folder.close()
    longer = CONFIG.replace(total_steps=10**6)
    assert folder.create(longer) == folder.checkpoint_path("latest")
    assert folder.config().total_steps == 10**6
    loaded = folder.load_latest()
    assert loaded is not None
    assert loaded[1] == {"step": 512}


def test_resume_from_the_highest_step_if_there_is_no_latest(folder: RunFolder) -> None:
    folder.create(CONFIG)
    for name in ("step-900", "step-10000", "step-2000", "best", "step-new"):
        save(folder, name, 0)
    assert folder.latest_checkpoint() == folder.checkpoint_path("step-10000")
    save(folder, "latest", 0)
    assert folder.latest_checkpoint() == folder.checkpoint_path("latest")


def test_the_error_for_a_damaged_latest_says_what_to_do(folder: RunFolder) -> None:
    folder.create(CONFIG)
    latest = folder.checkpoint_path("latest")
    latest.write_bytes(b"")
    with pytest.raises(ProxRLError) as error:
        folder.load_latest()
    assert one_line(error).endswith("is cut short (0 bytes); delete that file to start over from step 0")
    assert str(latest) in str(error.value)
    save(folder, "step-512", 512)
    with pytest.raises(ProxRLError, match=r"delete that file to resume from step-512 at step 512$"):
        folder.load_latest()
    save(folder, "best", 768)
    folder.write_status("stopped", 1024, 2048)
    with pytest.raises(ProxRLError, match=r"delete that file to resume from best at step 768, losing the 256 steps after it$"):
        folder.load_latest()
    folder.checkpoint_path("step-900").write_bytes(b"")
    with pytest.raises(ProxRLError, match=r"delete that file and step-900\.safetensors to resume from best at step 768"):
        folder.load_latest()
    for path in (latest, folder.checkpoint_path("step-900")):
        path.unlink()
    loaded = folder.load_latest()
    assert loaded is not None
    assert loaded[1] == {"step": 768}


def test_changed_settings_are_refused(folder: RunFolder) -> None:
    folder.create(CONFIG)
    save(folder, "latest", 1)
    folder.close()
    with pytest.raises(ProxRLError) as error:
        folder.create(CONFIG.replace(gamma=0.9, value_clip=None))
    for words in ("--gamma is 0.9", "started with 0.99", "config.toml", "--clobber", "--name"):
        assert words in one_line(error)
    assert folder.config().gamma == 0.99
    folder.create(CONFIG)  # the lock was freed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value_clip": None}, "--value-clip is off, but this run was started with 0.2"),
        ({"hidden_sizes": (32,)}, "--hidden-sizes is 32, but this run was started with 64 64"),
        ({"anneal_learning_rate": False}, "--anneal-learning-rate is false"),
        ({"env_kwargs": {}}, "--env-kwargs is empty, but this run was started with sizes=[1, 2]"),
    ],
)
def test_errors_show_settings_as_typed(change: dict[str, object], words: str) -> None:
    with pytest.raises(ProxRLError) as error:
        check_resumable(CONFIG, CONFIG.replace(**change))
    assert words in one_line(error)


def test_one_file_gives_back_all_settings_if_several_differ(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(ProxRLError) as error:
        check_resumable(CONFIG, CONFIG.replace(gamma=0.9, epochs=7, total_steps=1), path)
    assert f"and 1 other setting differs: give --config {path} to resume it, --clobber" in one_line(error)
    with pytest.raises(ProxRLError) as error:
        check_resumable(CONFIG, CONFIG.replace(gamma=0.9), path)
    assert f"give --gamma {CONFIG.gamma} to resume it" in one_line(error)


def test_settings_that_may_change() -> None:
    check_resumable(CONFIG, CONFIG.replace(total_steps=1, eval_every=5, save_every=5, device="cuda", threads=3))


def test_clobber_deletes_only_files_of_proxrl(folder: RunFolder) -> None:
    folder.create(CONFIG)
    save(folder, "latest", 512)
    folder.write_status("running", 512, 1024)
    run_files = [
        "metrics.jsonl",
        "events.out.tfevents.1.host",
        "wandb_id",
        "report.html",
        "videos/step-512.mp4",
        "wandb/run-1/x.wandb",
    ]
    other_files = ["notes.txt", "checkpoints/teacher.pt", "videos/talk.mov"]
    for name in run_files + other_files:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text("x")
    folder.close()
    assert folder.create(CONFIG.replace(gamma=0.9), clobber=True) is None
    left = {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}
    assert left == {"config.toml", "run.lock", *other_files}
    assert folder.config().gamma == 0.9


@pytest.mark.parametrize("clobber", [False, True])
def test_folders_of_other_programs_are_not_used(folder: RunFolder, clobber: bool) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "thesis.tex").write_text("x")
    with pytest.raises(ProxRLError) as error:
        folder.create(CONFIG, clobber)
    assert "not a ProxRL run" in one_line(error)
    (folder.path / "config.toml").write_text("title = 'not ours'\n")
    with pytest.raises(ProxRLError):
        folder.create(CONFIG, clobber)
    assert (folder.path / "config.toml").read_text() == "title = 'not ours'\n"
    assert (folder.path / "thesis.tex").exists()


def test_temporary_files_of_a_killed_run_are_deleted(folder: RunFolder) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "run.lock").write_text("1")
    (folder.path / ".config.toml.1.tmp").write_text("half")
    folder.create(CONFIG)  # killed before its config was written
    folder.close()
    (folder.checkpoints / ".latest.safetensors.1.tmp").write_text("half")
    folder.create(CONFIG)
    assert not list(folder.path.rglob("*.tmp"))


HOLD = """
import sys, time
from pathlib import Path
from proxrl.config import Config
from proxrl.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.create(Config(env_kwargs={"sizes": (1, 2)}))
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_while_the_first_lives(folder: RunFolder) -> None:
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        for clobber in (False, True):
            with pytest.raises(ProxRLError) as error:
                folder.create(CONFIG, clobber)
            assert f"process {holder.pid} is already training" in one_line(error)
        holder.kill()
    folder.create(CONFIG)


def test_lock_holds_within_one_process(folder: RunFolder) -> None:
    folder.create(CONFIG)
    with pytest.raises(ProxRLError, match="already training"):
        RunFolder(folder.path).create(CONFIG)


def test_status(folder: RunFolder) -> None:
    assert folder.read_status() == {}
    folder.create(CONFIG)
    folder.write_status("running", 512, 1024)
    folder.write_status("finished", 1024, 1024)
    status = folder.read_status()
    assert (status["state"], status["step"], status["planned_steps"], status["pid"]) == ("finished", 1024, 1024, os.getpid())
    assert status["versions"]["torch"] == torch.__version__
    assert {"proxrl", "python", "numpy", "gymnasium"} <= status["versions"].keys()
    folder.status_path.write_text("{")
    assert folder.read_status() == {}


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "seed1"):
        with pytest.raises(ProxRLError) as error:
            RunFolder(path).create(CONFIG)
        assert str(path) in one_line(error)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write to."""
    folder = tmp_path / "read_only"
    if sys.platform != "win32" and os.geteuid() == 0:  # root may write everywhere else
        with mounted(folder, "ro"):
            yield folder
        return
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this system does not keep the owner from writing")
    yield folder
    folder.chmod(0o755)


def test_read_only_folder(read_only: Path) -> None:
    with pytest.raises(ProxRLError) as error:
        RunFolder(read_only / "seed1").create(CONFIG)
    assert "can't use the run folder" in one_line(error)
    with pytest.raises(ProxRLError) as error:
        RunFolder(read_only).write_status("running", 0, 1)
    assert "can't write" in one_line(error)
    with pytest.raises(ProxRLError) as error:
        checkpoint.save(read_only / "latest.safetensors", {}, {})
    assert "the last good checkpoint is unchanged" in one_line(error)


def test_files_have_the_default_permissions(folder: RunFolder) -> None:
    folder.create(CONFIG)
    folder.write_status("stopped", 3, 4)
    assert json.loads(folder.status_path.read_text())["state"] == "stopped"
    if sys.platform != "win32":
        mask = os.umask(0)
        os.umask(mask)
        assert folder.status_path.stat().st_mode & 0o777 == 0o666 & ~mask
