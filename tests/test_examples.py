"""Every example runs and prints what it should, and the commands in its docstring run."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# What the output of each example ends with.
EXPECTED = {
    "action_mask": r"won (9\d|100) of 100 games",
    "asymmetric_critic": r"explains (0\.[89]\d|1\.00) of the returns; without the hidden key -?0\.[01]\d\n"
    r"actions that depend on the hidden key: 0$",
    "hybrid_action": r"'side': np\.int64\(0\).*\n.*'side': np\.int64\(1\).*\nmean distance from the goal 0\.0\d\d$",
    "own_advantage": r"mean return of the last 100 episodes: [1-4]\d\d$",
    "own_bonus": r"bonus per step: [01]\.\d\d\d before the models have learned, 0\.0\d\d at the end$",
    "own_callback": r"mean bonus of the last iteration was 0\.\d\d per step\n"
    r"stopped at step \d{5} of 400000 with a return of -1[0-4]\d$",
    "own_encoder": r"correct for (9\d|100) of 100 images$",
    "own_environment": r"the agent goes right$",
    "own_logger": r"metrics\.csv has 16 metrics of 40 iterations, charts/SPS among them: True$",
    "own_loss": r"prediction error: 0\.\d\d at first, 0\.0\d at the end$",
    "own_networks": r"parameters: policy 146, value 4545\nthe pole stays up for [1-5]\d\d steps$",
    "own_schedule": r"step 256: entropy_coef 0\.02000\n.*step 5376: .* 0\.02000\n.*step 10496: .* 0\.00500\n.*: .* 0\.00125$",
}


def commands_of(path: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return [line.partition("#")[0] for line in docstring.splitlines() if line.startswith("proxrl ")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED[path.stem], done.stdout.rstrip()), done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_command_in_the_docstring(path: Path, tmp_path: Path) -> None:
    commands = commands_of(path)
    assert commands
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command), "--total-steps", "512", "--rollout-steps", "64"]
        done = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"Done at step \d+", done.stdout)


def test_every_example_has_an_expected_output() -> None:
    assert set(EXPECTED) == {path.stem for path in EXAMPLES}
