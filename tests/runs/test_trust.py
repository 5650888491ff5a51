"""Opening a run folder of somebody else runs none of its code, and one's own runs need no flag."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import gymnasium
import pytest

import proxrl
from odd_envs import make_short
from proxrl.cli import main
from proxrl.common import trust
from proxrl.config import Config, field_types
from proxrl.config.code import code_settings
from proxrl.config.parse import read_toml, save_toml, toml_value
from proxrl.config.presets import load_preset
from proxrl.config.schedule import Schedule
from proxrl.errors import ProxRLError
from proxrl.export.exporter import export_policy
from proxrl.report import write_report
from proxrl.report.repeat_command import repeat_command
from proxrl.runs.folder import RunFolder

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_steps": 16,
    "num_minibatches": 2,
    "hidden_sizes": (8,),
    "total_steps": 32,
    "quiet": True,
    "tensorboard": False,
}
HOSTILE = """
from pathlib import Path
Path(__file__).with_name("marker").touch()
import gymnasium
if "Hostile-v0" not in gymnasium.registry:
    gymnasium.register("Hostile-v0", "gymnasium.envs.classic_control:CartPoleEnv")
def make(*_, **__):
    return gymnasium.make("CartPole-v1")
def schedule(step, planned_steps):
    return 0.9
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return proxrl.train("CartPole-v1", runs_dir=tmp_path_factory.mktemp("trained"), **SMALL).path


@pytest.fixture(autouse=True)
def _hostile_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that leaves a marker when it is imported, in the current folder; and a state folder of this test's own."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sys.modules.pop("hostile", None)
    gymnasium.registry.pop("Hostile-v0", None)


def foreign(trained: Path, **settings: Any) -> Path:
    """A copy of a run with other settings, as if unpacked from an archive."""
    folder = Path("runs/CartPole-v1/ppo/seed1")
    shutil.copytree(trained, folder)
    change(folder, **settings)
    return folder


def change(folder: Path, **settings: Any) -> None:
    written = {**read_toml(folder / "config.toml"), **settings}
    (folder / "config.toml").write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in written.items()))


def ran() -> bool:
    return Path("marker").exists()


COMMAND = {"env": "os:system", "env_kwargs": {"command": "touch marker"}}
IN_THE_ENVIRONMENT: list[dict[str, Any]] = [COMMAND, {"env": "hostile:make"}, {"env": "hostile:Hostile-v0"}]
IN_THE_NETWORK: list[dict[str, Any]] = [
    {"encoder": "hostile:make"},
    {"policy": "hostile:make"},
    {"value": "hostile:make"},
    {"gamma": "hostile:schedule"},
]


@pytest.mark.parametrize("settings", [*IN_THE_ENVIRONMENT, *IN_THE_NETWORK], ids=str)
def test_a_run_of_others_runs_no_code(
    trained: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = foreign(trained, **settings)
    monkeypatch.setenv("DISPLAY", ":999")  # far enough for `play`, which must refuse before it opens a window
    calls: list[Callable[..., Any]] = [proxrl.evaluate, proxrl.record]
    for call in calls:
        with pytest.raises(ProxRLError, match=rf"--{next(iter(settings))} .*--trust \(trust=True in Python\)") as caught:
            call(folder, episodes=2)
        assert "\n" not in str(caught.value)
    with pytest.raises(ProxRLError, match=r"--trust|no display"):
        proxrl.play(folder, episodes=1)
    with pytest.raises(ProxRLError, match="--trust"):
        export_policy(folder)
    if settings in IN_THE_ENVIRONMENT:
        assert proxrl.load(folder).act([0, 0, 0, 0]) in (0, 1)  # which needs no environment
        assert proxrl.evaluate(folder, env=make_short_cartpole, env_kwargs={}, episodes=2)["stochastic"].mean > 0
        assert proxrl.evaluate(folder, env="CartPole-v1", episodes=2)["stochastic"].mean > 0
        with pytest.raises(ProxRLError, match="--trust"):
            proxrl.evaluate(folder, env=settings["env"], episodes=2)
    else:
        with pytest.raises(ProxRLError, match="--trust"):
            proxrl.load(folder)
    assert main(["eval", str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    compared = [["compare", "runs", "--json"]] if settings is COMMAND else []  # it takes seconds
    for words in (["runs"], ["plot", "runs", "--text"], ["report", "runs"], *compared):
        assert main(words) == 0, words
    assert "is not evaluated" in capsys.readouterr().err
    assert repeat_command(RunFolder(folder)) == f"proxrl train --config {folder}/config.toml"
    with pytest.raises(ProxRLError, match=r"config.toml .*--trust"):
        proxrl.train(config=folder / "config.toml", **SMALL)
    assert not ran()


def test_environments_that_are_given_get_no_text_from_a_run_of_others(trained: Path) -> None:
    """A callable may pass its arguments on to what imports or opens them."""
    received: list[dict[str, Any]] = []

    def make(**kwargs: Any) -> gymnasium.Env:
        received.append(kwargs)
        return make_short_cartpole()

    folder = foreign(trained, env="hostile:make", env_kwargs={"command": "touch marker"})
    for call in (proxrl.evaluate, proxrl.record):
        with pytest.raises(ProxRLError, match=r"--env-kwargs .*--trust"):
            call(folder, env=make, episodes=1)
    assert not received
    assert proxrl.evaluate(folder, env="CartPole-v1", episodes=1)["stochastic"].mean > 0  # it does not get them
    assert proxrl.evaluate(folder, env=make, env_kwargs={"a": "b"}, episodes=1)["stochastic"].mean > 0
    assert {str(kwargs) for kwargs in received} == {"{'a': 'b'}"}
    received.clear()
    assert proxrl.evaluate(folder, env=make_short_cartpole(), episodes=1)  # an instance takes no arguments
    change(folder, env_kwargs={"size": 3})
    assert proxrl.evaluate(folder, env=make, episodes=1)
    assert {str(kwargs) for kwargs in received} == {"{'size': 3}"}
    change(folder, env="Ant-v5", env_kwargs={"xml_file": "evil.xml"})
    with pytest.raises(ProxRLError, match=r"--env-kwargs .*--trust"):
        proxrl.evaluate(folder, env="Ant-v5", episodes=1)


def make_short_cartpole(**_: Any) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=10)


def test_code_that_only_training_uses_is_not_imported_by_looking(trained: Path) -> None:
    parts = {"bonus": ["hostile:make", "coef=1"], "learner": ["hostile:make"], "advantage": ["hostile:make"]}
    folder = foreign(trained, callback="hostile:make", logger="hostile:make", **parts)
    assert proxrl.evaluate(folder, episodes=2)["stochastic"].mean > 0
    assert proxrl.load(folder).act([0, 0, 0, 0]) in (0, 1)
    assert main(["runs"]) == 0
    for name, words in parts.items():
        with pytest.raises(ProxRLError, match=rf"--{name} .*--trust"):
            proxrl.train(
                config=folder / "config.toml",
                **SMALL,
                **{other: None for other in parts if other != name},
                callback=None,
                logger=None,
            )
        assert words[0] in str(code_settings(read_toml(folder / "config.toml"))[name])
    assert not ran()


def test_trusting_once_is_enough(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign(trained, env="hostile:make")
    words = ["eval", str(folder), "--episodes", "2"]
    assert main([*words, "--trust"]) == 0
    assert ran()
    assert main(words) == 0
    change(folder, env="hostile:make_another")
    assert main(words) == 2
    assert "hostile:make_another" in capsys.readouterr().err


def test_a_folder_that_can_not_be_written_to_is_remembered(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    folder = foreign(trained, env="hostile:make")
    monkeypatch.setattr("proxrl.config.code.stamp", refuse)
    proxrl.evaluate(folder, episodes=2, trust=True)
    proxrl.evaluate(folder, episodes=2)
    folder = folder.rename("elsewhere")
    with pytest.raises(ProxRLError, match="--trust"):
        proxrl.evaluate(folder, episodes=2)


def test_files_of_settings_are_trusted_by_content(trained: Path) -> None:
    folder = foreign(trained, env="hostile:make", gamma="hostile:schedule")
    file = folder / "config.toml"
    with pytest.raises(ProxRLError, match="--gamma 'hostile:schedule'"):
        proxrl.train("CartPole-v1", config=file, name="other", **SMALL)
    assert proxrl.train("CartPole-v1", config=file, name="other", gamma=0.9, **SMALL).finished  # uses nothing of the file's
    assert not ran()
    assert main(["train", "--config", str(file), "--print-config"]) == 2
    assert main(["train", "--config", str(file), "--print-config", "--trust"]) == 0
    assert main(["train", "--config", str(file), "--print-config"]) == 0
    change(folder, env="hostile:other")
    assert main(["train", "--config", str(file), "--print-config"]) == 2


@pytest.mark.parametrize("entry", ["gamma = 'hostile:schedule'", "policy = 'hostile:make'", "env = 'hostile:make'"])
def test_preset_files_are_checked_too(entry: str) -> None:
    name, _, value = entry.partition(" = ")
    Path("preset.toml").write_text(f"[values]\n{name} = {{ value = {value}, source = '' }}\n")
    with pytest.raises(ProxRLError, match=rf"preset.toml .*--{name}"):
        proxrl.train("CartPole-v1", preset="preset.toml", **SMALL)
    load_preset("preset.toml", "CartPole-v1", trust=True)
    assert load_preset("preset.toml", "CartPole-v1").keys() == {name}
    assert not ran()


def test_resuming_compares_settings_without_importing_them(trained: Path) -> None:
    folder = foreign(trained, gamma="hostile:schedule")
    with pytest.raises(ProxRLError, match=r"--gamma is 0.9, but this run was started with hostile:schedule"):
        proxrl.train("CartPole-v1", gamma=0.9, **SMALL)
    change(folder, gamma=RunFolder(trained).config().gamma, callback="hostile:make")
    with pytest.raises(ProxRLError, match="--callback is off"):
        proxrl.train("CartPole-v1", **SMALL)
    assert not ran()


# --- one's own runs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own() -> Path:
    return proxrl.train(make_short, env_kwargs={"limit": 5}, **SMALL).path


def is_own(folder: Path) -> bool:
    try:
        RunFolder(folder).config()
    except ProxRLError:
        return False
    return True


def test_own_runs_need_no_flag_even_when_copied_or_moved(own: Path) -> None:
    key = Path("state/proxrl/key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert proxrl.evaluate(own, episodes=2)["stochastic"].lengths
    shutil.copytree(own, "copy")
    assert is_own(Path("copy"))
    assert is_own(own.rename("moved"))
    change(Path("moved"), learning_rate=1.0)
    assert is_own(Path("moved"))
    change(Path("moved"), env_kwargs={"limit": 6})
    assert not is_own(Path("moved"))


@pytest.mark.skipif(os.name != "posix", reason="needs inodes and owners of files")
def test_own_runs_are_recognized_without_the_key(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(own, "copy")
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")  # as in a container without a home
    assert is_own(own)
    assert not is_own(Path("copy"))
    resumed = proxrl.train(make_short, env_kwargs={"limit": 5}, **{**SMALL, "total_steps": 64})
    assert resumed.step == 64
    assert is_own(own.rename("moved"))
    moved = Path("moved")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert not is_own(moved)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert is_own(moved)
    os.link(moved / "stamp.anchor", "second")
    assert not is_own(moved)
    Path("second").unlink()
    assert not is_own(moved)  # the link changed its time


@pytest.mark.skipif(os.name != "posix", reason="needs inodes and owners of files")
@pytest.mark.parametrize("name", ["stamp.anchor", "stamp.json"])
def test_a_stamp_that_others_could_have_written_proves_nothing(own: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert is_own(own)
    (own / name).chmod(0o664)
    stamp = json.loads((own / "stamp.json").read_text())
    stamp["anchor"]["changed"] = (own / "stamp.anchor").stat().st_ctime_ns
    (own / "stamp.json").write_text(json.dumps(stamp))
    assert not is_own(own)
    (own / name).chmod(0o644)
    stamp["anchor"]["changed"] = (own / "stamp.anchor").stat().st_ctime_ns
    (own / "stamp.json").write_text(json.dumps(stamp))
    assert is_own(own)


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
def test_a_key_that_others_could_have_read_is_not_used(own: Path) -> None:
    shutil.copytree(own, "copy")
    Path("state/proxrl/key").chmod(0o640)
    assert not is_own(Path("copy"))
    assert is_own(own)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"digest": 1}', "[" * 10**5, '{"anchor": null, "signature": 5}'])
def test_a_damaged_stamp_proves_nothing(own: Path, content: str) -> None:
    stamp = json.loads((own / "stamp.json").read_text())
    if content.startswith("{") and content != "{}":
        content = json.dumps({"digest": stamp["digest"], **json.loads(content)})
    (own / "stamp.json").write_text(content)
    assert not is_own(own)


def test_runs_without_code_have_no_stamp_and_need_none(trained: Path) -> None:
    assert not (trained / "stamp.json").exists()
    assert is_own(foreign(trained))


def test_without_a_home_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    assert trust.state_folder() is None
    trust.remember(Path("file"), "digest")
    assert not trust.is_remembered(Path("file"), "digest")


# --- which settings name code -----------------------------------------------------------------------------------------------


def test_every_setting_with_text_may_name_code_unless_it_is_declared_as_plain() -> None:
    plain = {"action_mask", "actor_keys", "critic_keys", "name", "device"}
    found = set()
    for spec in dataclasses.fields(Config):
        kinds = {field_types()[spec.name], *get_args(field_types()[spec.name])}
        if kinds & {str, tuple[str, ...], Schedule}:
            assert (spec.name in code_settings({spec.name: "module:name"})) != bool(spec.metadata.get("plain")), spec.name
            found |= {spec.name} if spec.metadata.get("plain") else set()
    assert plain <= found
    assert code_settings({"gamma": "linear:0.9:0.99", "device": "cuda:1", "encoder": "impala", "env": "ALE/Pong-v5"}) == {}


@pytest.mark.parametrize(
    ("env", "kwargs", "code"),
    [
        ("HalfCheetah-v5", {"xml_file": "/tmp/x.xml"}, True),
        ("GymV26Environment-v0", {"env_id": "hostile:x"}, True),
        ("Unknown-v0", {"options": [{"path": "x"}]}, True),
        ("CheetahRun-v1", {"base_path": "/tmp"}, True),
        ("HalfCheetah-v5", {"ctrl_cost_weight": 0.1, "render_mode": "rgb_array"}, False),
        ("FrozenLake-v1", {"map_name": "8x8"}, False),
        ("module:make", {"size": 3}, True),
    ],
)
def test_arguments_that_could_import_or_read_files(env: str, kwargs: dict[str, Any], code: bool) -> None:
    assert ("env_kwargs" in code_settings({"env": env, "env_kwargs": kwargs})) == code


# --- names, links and damage ------------------------------------------------------------------------------------------------

ESCAPE = "\x1b]0;owned\x07\x1b[31m<script>alert(1)</script>\u202e$\\frac"


def test_names_can_not_control_the_terminal_or_the_page(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign(trained, env=f"CartPole{ESCAPE}", name=ESCAPE)
    assert main(["eval", str(folder)]) == 2
    for words in (
        ["runs"],
        ["runs", "--each"],
        ["plot", "runs", "--text"],
        ["plot", "runs", "--out", "a.svg"],
        ["compare", "runs"],
        ["report", "runs"],
    ):
        assert main(words) == 0, words
    shown = capsys.readouterr()
    assert "\\x1b]0;owned\\x07" in shown.out
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.out + shown.err)
    page = write_report([folder], episodes=0).read_text()
    assert "<script>alert" not in page
    change(folder, env="CartPole-v1", name="a\n\n<script>`|")
    card = export_policy(folder, episodes=0, format="pt2").card.read_text()
    assert "a\\n\\n<script>'\\|" in card  # inside of code marks, on one line


def test_links_in_a_run_folder_are_not_written_through(trained: Path) -> None:
    folder = foreign(trained)
    target = Path("target")
    target.write_text("precious")
    for name in ("run.lock", "metrics.jsonl"):
        (folder / name).unlink()
        (folder / name).symlink_to(target.resolve())
        with pytest.raises(ProxRLError, match=f"{name} is a link"):
            proxrl.train("CartPole-v1", **SMALL)
        (folder / name).unlink()
        (folder / name).touch()
    (folder / f".evaluations.json.{os.getpid()}.tmp").symlink_to(target.resolve())
    assert main(["eval", str(folder), "--episodes", "2"]) == 0
    assert target.read_text() == "precious"
    (folder / "checkpoints").rename("models")
    (folder / "checkpoints").symlink_to(Path("models").resolve())
    with pytest.raises(ProxRLError, match="checkpoints is a link"):
        proxrl.train("CartPole-v1", clobber=True, **SMALL)
    assert list(Path("models").glob("*.safetensors"))
    Path("private").mkdir()
    Path("private/a.mp4").write_text("private")
    (folder / "videos").symlink_to(Path("private").resolve())
    assert "a.mp4" not in write_report([folder], episodes=0).read_text()


def test_damaged_files_do_not_hide_other_runs(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign(trained)
    deep = "[" * 10**5
    save_toml(Config(), Path("runs/config.toml"))
    for status in (deep, '{"step": NaN, "mean_return": Infinity, "updated": "0001-01-01"}', f'{{"step": 1{"0" * 400}}}', "[]"):
        (folder / "status.json").write_text(status)
        (folder / "evaluations.json").write_text(status)
        (folder / "metrics.jsonl").write_text(f'{status}\n{{"step": "x"}}\n{{"step": 1e999}}\n{{"step": 1, "a": {deep}}}\n')
        for words in (["runs"], ["report", "runs", "--episodes", "0"]):
            assert main(words) == 0, (status[:50], capsys.readouterr().err)
    (folder / "status.json").unlink()
    os.mkfifo(folder / "status.json")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("/dev/zero")
    (folder / "config.toml").write_text(f"env = {deep}")
    assert main(["runs"]) == 0
    assert "seed1 is left out" in capsys.readouterr().err
