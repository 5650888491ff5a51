"""What settings put around a single environment: repeated actions, then the user's wrappers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from proxrl.common.imports import import_attribute
from proxrl.errors import ProxRLError, one_line


@dataclass(frozen=True)
class EnvWrapper:
    """A callable that --wrapper names, and its keyword arguments."""

    name: str
    wrap: Callable[..., Any]
    kwargs: dict[str, Any]

    def apply(self, env: gymnasium.Env) -> gymnasium.Env:
        try:
            wrapped = self.wrap(env, **self.kwargs)
        except Exception as error:
            given = " ".join(f"{key}={value}" for key, value in self.kwargs.items())
            hint = f"; check its arguments {given}" if given else ""
            raise ProxRLError(f"--wrapper {self.name} failed: {one_line(error)}{hint}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise ProxRLError(f"--wrapper {self.name} returned {type(wrapped).__name__}, but must return a gymnasium.Env")
        return wrapped


@dataclass(frozen=True)
class Wrapping:
    """What is put around each environment. Actions are repeated inside of all wrappers, as the frame skip of Atari games is."""

    action_repeat: int = 1
    wrappers: tuple[EnvWrapper, ...] = ()  # innermost first

    @property
    def is_needed(self) -> bool:
        return self.action_repeat > 1 or bool(self.wrappers)

    @property
    def flag(self) -> str:
        """The flag that needs environments which can be wrapped."""
        return "--wrapper" if self.wrappers else "--action-repeat"

    def apply(self, env: gymnasium.Env) -> gymnasium.Env:
        made = ActionRepeat(env, self.action_repeat) if self.action_repeat > 1 else env
        try:
            for wrapper in self.wrappers:
                made = wrapper.apply(made)
        except BaseException:
            env.close()
            raise
        return made


class ActionRepeat(gymnasium.Wrapper):
    """Repeats each action and sums the rewards. The end of an episode ends the repetition."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, bool(terminated), bool(truncated), info


def load_wrapper(name: str, kwargs: dict[str, Any]) -> EnvWrapper:
    """Import the wrapper `module:callable`."""
    wrap = import_attribute(name)
    if not callable(wrap):
        raise ProxRLError(f"--wrapper {name}: there is no such callable; it must be module:callable")
    return EnvWrapper(name, wrap, {key: _with_tuples(value) for key, value in kwargs.items()})


def _with_tuples(value: Any) -> Any:
    """Return lists as tuples: Gymnasium's wrappers refuse lists as shapes, and a command line can't tell the two apart."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list | tuple) else value
