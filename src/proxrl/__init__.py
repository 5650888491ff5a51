"""ProxRL: Proximal Policy Optimization you can read in one sitting, import, and run on the machine you have.

import proxrl

result = proxrl.train("CartPole-v1", total_steps=100_000)
agent = proxrl.load(result.path)
action = agent.act(observation)
scores = proxrl.evaluate(result.path, episodes=20)
"""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from proxrl.config import Config
from proxrl.errors import ProxRLError

if TYPE_CHECKING:
    from proxrl.callback import Callback
    from proxrl.launch import Result, train
    from proxrl.look.agent import Agent, load
    from proxrl.look.evaluation import evaluate
    from proxrl.look.recording import Recording, record
    from proxrl.look.window import play
    from proxrl.runs.evaluations import Scores
    from proxrl.tuning.run import Tuned, tune

__version__ = metadata.version("proxrl")
__all__ = [
    "Agent",
    "Callback",
    "Config",
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

# No module may have the name of a function here: importing the module would put it in the function's place.
_HOMES = {
    "train": "launch",
    "Result": "launch",
    "evaluate": "look.evaluation",
    "Scores": "look.evaluation",
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
    """Imported when first used: `proxrl --help` and worker processes need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'proxrl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"proxrl.{_HOMES[name]}"), name)
