"""The commands of docs/quickstart.md, exactly as written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from screens import Screen

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/quickstart.md").read_text()


def commands(block: int) -> list[str]:
    """Return the lines of a code block of the page, without comments."""
    lines = re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)[block].splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that uses the virtual environment of these tests, so that nothing has to be installed."""
    if not (Path(sys.prefix) / "bin/activate").exists():
        pytest.skip("these tests do not run in a virtual environment")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    venv = tmp_path / ".venv"
    venv.mkdir()
    (venv / "bin").symlink_to(Path(sys.prefix) / "bin")
    for stamp in (".core", ".extras"):
        (venv / stamp).touch()
    return tmp_path


def test_the_ten_commands_train_and_export_an_agent(checkout: Path, screen: Screen) -> None:
    lines = commands(0)
    assert len(lines) == 10
    # Only the first training is shortened, by a variable of the Makefile.
    environment = {**os.environ, **screen.environment, "FLAGS": "--total-steps 20000"}
    done = subprocess.run(
        ["bash", "-e"], input="\n".join(lines), cwd=checkout, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "Done at step" in done.stdout
    assert re.search(r"^CartPole-v1 +ppo +1 +20,224 .*finished", done.stdout, re.M)
    assert re.search(r"^deterministic +return \d", done.stdout, re.M)
    run = checkout / "runs/CartPole-v1/ppo/seed1"
    assert (run / "evaluations.json").exists()
    (video,) = (run / "videos").iterdir()
    assert video.read_bytes()[4:8] == b"ftyp"
    assert (checkout / "runs/CartPole-v1/ppo/seed2/checkpoints/latest.safetensors").exists()
    page = (checkout / "report.html").read_text()
    assert "CartPole-v1" in page
    assert "data:video/mp4;base64," in page
    assert {path.name for path in (run / "export").iterdir()} == {"policy.onnx", "README.md", "settings.toml"}


def test_the_commands_of_the_next_steps_are_valid() -> None:
    from proxrl.cli import command_names, make_parser

    for line in commands(1):
        program, name, *words = line.split()
        assert program == "proxrl"
        assert name in command_names()
        make_parser(name).check_flags(words)
        make_parser(name).parse_args(words)
