"""An environment's action mask, wherever it gives it, as an entry of its observations."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proxrl.envs.masks import MASK, flatten_mask, total_choices
from proxrl.envs.spaces import Masked
from proxrl.errors import ProxRLError

AUTO, INFO, OFF = "auto", "info", "off"


class MaskedObservations(gymnasium.Wrapper):
    """Observes {"observation": ..., "action_mask": bits}; see `proxrl.envs.spaces.Masked`."""

    def __init__(self, env: gymnasium.Env, key: str | None) -> None:
        """Masks come from this key of the observation, which then no network sees, or else from `info`."""
        super().__init__(env)
        self.key = key
        rest = env.observation_space
        if key is not None:
            assert isinstance(rest, spaces.Dict)
            rest = _without(rest, key)
        self.observation_space = Masked(rest, total_choices(env.action_space))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observe(obs, info, over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(obs, info, bool(terminated or truncated)), reward, terminated, truncated, info

    def _observe(self, obs: Any, info: dict[str, Any], over: bool) -> dict[str, Any]:
        if self.key is not None:
            obs, given = split_mask(obs, self.key)
        else:
            given = info.get(MASK)
        if over:  # nobody acts any more, and what is allowed then need not make sense
            return {"observation": obs, MASK: np.ones(self.observation_space.choices, np.int8)}  # type: ignore[attr-defined]
        if given is None:
            place = f'info has no "{MASK}"' if self.key is None else f"the observation has no {self.key!r}"
            raise ValueError(f"{place} here; give one after every reset and step, or use --action-mask off")
        try:
            return {"observation": obs, MASK: flatten_mask(self.env.action_space, given)}
        except ValueError as error:
            raise ValueError(f"{error} (--action-mask off leaves it alone)") from None


def split_mask(obs: dict[str, Any], key: str) -> tuple[Any, Any]:
    """The observation without its mask, and the mask if it is there; a single other entry stands for itself."""
    rest = {name: value for name, value in obs.items() if name != key}
    return next(iter(rest.values())) if len(rest) == 1 else rest, obs.get(key)


def _without(space: spaces.Dict, key: str) -> gymnasium.Space:
    """The space of what `split_mask` leaves."""
    rest = {name: part for name, part in space.items() if name != key}
    if not rest:
        raise ProxRLError(f"the observation holds nothing but {key!r}; --action-mask off lets the policy see it")
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(list(rest.items()))


def with_mask(env: gymnasium.Env, source: str) -> gymnasium.Env:
    """The environment, with its mask beside its observations where it has one; `source` is a value of --action-mask."""
    if source == OFF:
        return env
    size = total_choices(env.action_space)
    if source == AUTO:
        source = _find(env) if size else OFF
        return env if source == OFF else with_mask(env, source)
    if not size:
        raise ProxRLError(f"--action-mask {source}: the action space {env.action_space} has no choices to mask; leave it out")
    if source == INFO:
        return MaskedObservations(env, None)
    if not isinstance(env.observation_space, spaces.Dict) or source not in env.observation_space.spaces:
        raise ProxRLError(f"--action-mask {source}: the observation space has no such key; it is {env.observation_space}")
    return MaskedObservations(env, source)


def _find(env: gymnasium.Env) -> str:
    """By a look at the observation space, or else at the info of a reset: only there does info show itself."""
    space = env.observation_space
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        return MASK
    try:
        _, info = env.reset(seed=0)
    except (Exception, SystemExit):
        return OFF  # what is wrong is told when the run resets it
    return INFO if isinstance(info, dict) and info.get(MASK) is not None else OFF
