"""From the words of `--wrapper` to what is put around each environment."""

from typing import TYPE_CHECKING

from proxrl.config.calls import parse_calls

if TYPE_CHECKING:
    from proxrl.config.config import Config
    from proxrl.envs.wrapping import Wrapping


def load_wrapping(config: "Config") -> "Wrapping":
    """Import the wrappers of a run, and return what is put around each of its environments."""
    from proxrl.envs.wrapping import Wrapping, load_wrapper  # not before it is needed, because it imports Gymnasium

    wrappers = tuple(load_wrapper(*call) for call in parse_calls("wrapper", config.wrapper))
    return Wrapping(config.action_repeat or 1, wrappers)
