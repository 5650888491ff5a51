"""ProxRL: Proximal Policy Optimization you can read in one sitting, import, and run on the machine you have.

import proxrl

result = proxrl.train("CartPole-v1", total_steps=100_000)
agent = proxrl.load(result.path)
action = agent.act(observation)
scores = proxrl.evaluate(result.path, episodes=20)
"""

import os
from typing import TYPE_CHECKING, Any

from proxrl.config import Config
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from proxrl.bonus.api import Learner
    from proxrl.callback import Callback
    from proxrl.launch import train
    from proxrl.look.agent import Agent, load
    from proxrl.look.evaluation import evaluate
    from proxrl.look.recording import Recording, record
    from proxrl.look.window import play
    from proxrl.run_texts import Result
    from proxrl.runs.evaluations import Scores
    from proxrl.tuning.run import Tuned, tune

    __version__: str

# The threads of GNU OpenMP, which torch uses on Linux, spin for milliseconds while they wait for each other. On cores with other
# work they take the time of the very thread they wait for, and a run slows down by up to ten times (docs/performance.md). Here
# they are made to sleep sooner. OpenMP reads this when torch is first imported, so import proxrl before torch.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "50000"

__all__ = [
    "Agent",
    "Callback",
    "Config",
    "Learner",
    "ProxRLError",
    "Recording",
    "Result",
    "Scores",
    "Tuned",
    "evaluate",
    "load",
    "play",
    "record",
    "train",
    "tune",
]

# Where each name is defined. No module may have the name of a function here: importing the module would replace the function.
_HOMES = {
    "Learner": "bonus.api",
    "train": "launch",
    "Result": "run_texts",
    "evaluate": "look.evaluation",
    "Scores": "runs.evaluations",
    "load": "look.agent",
    "Agent": "look.agent",
    "Callback": "callback",
    "tune": "tuning.run",
    "Tuned": "tuning.run",
    "record": "look.recording",
    "Recording": "look.recording",
    "play": "look.window",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `proxrl --help` and worker processes do not wait for torch."""
    if name == "__version__":
        from importlib import metadata

        return metadata.version("proxrl")
    if name not in _HOMES:
        raise AttributeError(f"module 'proxrl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"proxrl.{_HOMES[name]}"), name)
