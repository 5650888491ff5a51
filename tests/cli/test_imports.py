"""Commands start and end quickly: they import only what they need. Modules are counted, since times depend on the machine."""

import subprocess
import sys
from pathlib import Path

from commands import SMALL
from written_runs import write_run

# Each command, and what no command up to it may have imported, in one process.
CODE = """
import sys
from proxrl.cli import main

def imported(*names):
    return [name for name in names if name in sys.modules]

def call(*words, without):
    assert main(words) == 0, words
    assert not imported(*without.split()), (words, imported(*without.split()))

heavy = "torch matplotlib pandas scipy sympy wandb envpool pygame ale_py mujoco onnx optuna rliable"
heavy += " tensorboard.summary tensorboard.compat.tensorflow_stub"
call("--help", without=heavy + " numpy gymnasium rich importlib.metadata")
call("train", "--help", without=heavy + " numpy gymnasium rich importlib.metadata")
call("runs", without=heavy + " numpy gymnasium")
call("plot", "Own-v0", "--text", without=heavy)
call("report", "Own-v0", "--episodes", "0", without=heavy)
call("check", "CartPole-v1", "--episodes", "1", without=heavy)
heavy = heavy.removeprefix("torch ") + " torch._dynamo torch._inductor torch._functorch.aot_autograd torch.onnx"
call("train", "CartPole-v1", *sys.argv[1:], "--total-steps", "32", without=heavy)
call("eval", "CartPole-v1", "--episodes", "1", without=heavy)
"""


def test_commands_import_only_what_they_need(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "Own-v0", "ppo", 1, [1.0, 2.0])
    done = subprocess.run([sys.executable, "-c", CODE, *SMALL], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
