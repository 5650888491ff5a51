"""docs/coming_from.md: its names are those that the suggestions know, its ports run, and its C++ program agrees with Python."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import proxrl
from proxrl.cli import main
from proxrl.config.other_names import OTHER_NAMES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/coming_from.md").read_text()
COMPILER = shutil.which("g++") or shutil.which("c++")


def blocks(language: str) -> list[str]:
    return [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S) if kind == language]


def test_the_table_of_names_agrees_with_the_suggestions() -> None:
    rows = [re.findall(r"`([a-z_]+)`", row) for row in PAGE.split("## From Stable")[0].splitlines() if row.startswith("| `")]
    compared = 0
    for ours, *theirs in rows:
        for name in theirs:
            if name in OTHER_NAMES and OTHER_NAMES[name].ours is not None and name != "lr_schedule":
                assert OTHER_NAMES[name].ours == ours
                compared += 1
    assert compared > 25


def test_the_port_from_sb3_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = [block for block in blocks("python") if block.startswith("# ProxRL")]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    short = port.replace("total_steps=100_000", "total_steps=512, quiet=True").replace("eval_every=10_000", "eval_every=512")
    assert short.count("=512") == 2
    exec(compile(short, "coming_from.md", "exec"), names)
    assert names["action"] in (0, 1)


def test_the_commands_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("proxrl train")]
    assert len(lines) == 2
    for line in lines:
        assert main([*shlex.split(line)[1:], "--print-config"]) == 0
    assert "adaptive_learning_rate = 0.008" in capsys.readouterr().out


def headers() -> Path | None:
    """Return the folder of ONNX Runtime's headers."""
    folders = [os.environ.get("ONNXRUNTIME_INCLUDE"), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    return next((Path(each) for each in folders if each and (Path(each) / "onnxruntime_cxx_api.h").exists()), None)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_exported_policy_in_cpp_acts_as_in_python(env: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="pip install 'proxrl[export]'")
    if COMPILER is None or headers() is None:
        pytest.skip("needs a C++ compiler and ONNX Runtime's headers: apt install g++ libonnxruntime-dev (Debian 13)")
    library = next(Path(runtime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if library is None:
        pytest.skip("the onnxruntime package has no shared library here")
    from proxrl.export import export_policy

    small = {
        "num_envs": 2,
        "rollout_steps": 32,
        "num_minibatches": 1,
        "epochs": 1,
        "total_steps": 64,
        "normalize_observations": True,
    }
    run = proxrl.train(env, runs_dir=tmp_path, tensorboard=False, quiet=True, **small)
    policy = export_policy(run.path, episodes=0).path
    program = tmp_path / "onnx_policy"
    source = ROOT / "examples/onnx_policy.cpp"
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # for the linker and the loader; the package has neither name
        (tmp_path / name).symlink_to(library)
    paths = ["-I", headers(), "-L", tmp_path, f"-Wl,-rpath,{tmp_path}"]
    command = [COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", source, *paths, "-lonnxruntime", "-o", program]
    subprocess.run(list(map(str, command)), check=True)
    agent = proxrl.load(run.path)
    space = agent.observation_space
    observations = np.clip(np.random.default_rng(1).normal(size=(20, *space.shape)), space.low, space.high).astype(np.float32)
    text = "".join(" ".join(map(repr, map(float, row))) + "\n" for row in observations)
    done = subprocess.run([str(program), str(policy)], input=text, capture_output=True, text=True, check=True)
    actions = np.array([list(map(float, line.split())) for line in done.stdout.splitlines()])
    expected = np.asarray(agent.act(observations))
    np.testing.assert_allclose(actions, expected.reshape(actions.shape), atol=1e-4)
