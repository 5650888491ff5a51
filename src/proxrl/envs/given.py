"""Environments that exist already: instances that a user gives, and the first result of a callable.

Both are callables like any other that makes environments, so that the rest of ProxRL need not know them.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper

from proxrl.envs.api import env_kwargs_hint
from proxrl.envs.atari import looks_like_atari
from proxrl.envs.gymnasium import find_callable
from proxrl.errors import ProxRLError, one_line

# What users may give as an environment.
EnvSource: TypeAlias = str | Callable[..., Any] | gymnasium.Env | VectorEnv
# Ends the name of an environment that was given as an instance, from which it can't be made again.
INSTANCE = ":<instance>"


class GivenEnv:
    """A callable that returns an instance that the user has made, a single environment or a vectorized one.

    Its pool does not close it: it belongs to the user.
    """

    def __init__(self, instance: gymnasium.Env | VectorEnv) -> None:
        self.instance = instance
        self.vectorized = isinstance(instance, VectorEnv)
        self.num_envs = instance.num_envs if isinstance(instance, VectorEnv) else 1
        self.lent = False
        kind = type(instance.unwrapped)
        # The id under which the task is registered, by which it gets its preset. Atari games differ: ProxRL preprocesses them.
        task = "" if instance.spec is None else instance.spec.id
        self.task = task if task in gymnasium.registry and not looks_like_atari(task) else None
        plain = self.task is not None and not self.vectorized and _is_plain(instance.spec)
        self.name = str(self.task) if plain else (self.task or f"{kind.__module__}.{kind.__qualname__}") + INSTANCE
        self.__name__ = f"the given {type(instance).__name__}"

    @property
    def can_be_made_again(self) -> bool:
        """Whether its name alone is enough to make it."""
        return not self.name.endswith(INSTANCE)

    def __call__(self, **kwargs: Any) -> gymnasium.Env | VectorEnv:
        if kwargs:
            raise ProxRLError(f"{', '.join(kwargs)}: an instance takes no arguments; give a callable that makes it")
        if self.lent:
            raise ProxRLError("an instance is a single environment, which is in use; give a callable that makes several")
        self.lent = True
        if isinstance(self.instance, VectorEnv):
            return LentVector(self.instance, self)
        return LentEnv(self.instance, self)

    def close(self) -> None:
        """Do nothing: the user's instance stays open."""

    def __reduce__(self) -> Any:
        raise TypeError("an instance can't be moved to another process; give a callable that makes it")


class LentEnv(gymnasium.Wrapper):
    """An environment that `close` gives back to its owner."""

    def __init__(self, env: gymnasium.Env, owner: GivenEnv) -> None:
        super().__init__(env)
        self.owner = owner

    def close(self) -> None:
        self.owner.lent = False


class LentVector(VectorWrapper):
    """A vectorized environment that `close` gives back to its owner."""

    def __init__(self, env: VectorEnv, owner: GivenEnv) -> None:
        super().__init__(env)
        self.owner = owner

    def close(self, **_: Any) -> None:
        self.owner.lent = False


class FirstMade:
    """A callable whose first result exists already: it was made to find out whether it is vectorized."""

    def __init__(self, make: Callable[..., Any], name: str, kwargs: dict[str, Any], num_envs: int) -> None:
        functools.update_wrapper(self, make)
        self.__name__ = name
        self._make = make
        required = takes(make, "num_envs") and inspect.signature(make).parameters["num_envs"].default is inspect.Parameter.empty
        self._first = self._call(kwargs | ({"num_envs": num_envs} if required and "num_envs" not in kwargs else {}))
        self.vectorized = isinstance(self._first, VectorEnv)
        self.num_envs: int = self._first.num_envs if self.vectorized else 1

    def resize(self, kwargs: dict[str, Any], num_envs: int) -> None:
        """Make vectorized environments again with another number of them, if the callable takes it as `num_envs`."""
        if num_envs != self.num_envs and takes(self._make, "num_envs") and "num_envs" not in kwargs:
            self.close()
            self._first = self._call(kwargs | {"num_envs": num_envs})
            self.num_envs = self._first.num_envs

    def close(self) -> None:
        """Close the first result, if nobody has taken it."""
        first, self._first = self._first, None
        if first is not None and hasattr(first, "close"):
            first.close()

    def __call__(self, **kwargs: Any) -> Any:
        first, self._first = self._first, None
        return self._make(**kwargs) if first is None else first

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes make their own environments: the first result stays here, and may be impossible to copy.
        return {**self.__dict__, "_first": None}

    def _call(self, kwargs: dict[str, Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module=r"gymnasium\.")
                return self._make(**kwargs)
        except Exception as error:
            raise ProxRLError(f"can't make {self.__name__}: {one_line(error)}{env_kwargs_hint(kwargs)}") from error


def second_maker(env: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return what makes a second environment beside that of training: the id of an instance, if that is enough."""
    return env.name if isinstance(env, GivenEnv) and env.can_be_made_again else env


def as_maker(env: EnvSource) -> str | Callable[..., Any]:
    """Return a name or a callable, given either of them or an instance."""
    if isinstance(env, gymnasium.Env | VectorEnv):
        return GivenEnv(env)
    return env


def made_first(env: str | Callable[..., Any], kwargs: dict[str, Any], num_envs: int) -> GivenEnv | FirstMade | None:
    """Return an instance, or the callable with its first result; None for an id, whose environments are known."""
    if isinstance(env, GivenEnv | FirstMade):
        return env
    function = find_callable(env) if isinstance(env, str) else env
    if function is None:
        return None
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    return FirstMade(function, name, kwargs, num_envs)


def resume_notes(env: str | Callable[..., Any], step: int) -> list[str]:
    """Return what to say when a run of vectorized environments is resumed at a step: ProxRL does not choose their episodes."""
    if step == 0 or not isinstance(env, GivenEnv | FirstMade) or not env.vectorized:
        return []
    return ["A VectorEnv draws its own seeds, so its episodes differ from those of a run without interruption"]


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a callable has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _is_plain(spec: Any) -> bool:
    """Return whether an environment is what `gymnasium.make` makes from its id alone."""
    registered = gymnasium.registry[spec.id]
    kwargs = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    same_limit = spec.max_episode_steps == registered.max_episode_steps
    return kwargs == registered.kwargs and same_limit and not spec.additional_wrappers
