"""Adds the action mask that an environment gives in `info` or in its observation to the observations."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from proxrl.envs.interface import require_spaces
from proxrl.envs.masks import MASK, flatten_mask, total_choices
from proxrl.envs.spaces import Masked
from proxrl.errors import ProxRLError

AUTO, INFO, OFF = "auto", "info", "off"


class MaskedObservations(gymnasium.Wrapper):
    """A wrapper with observations {"observation": ..., "action_mask": bits}, as `proxrl.envs.spaces.Masked` describes them."""

    def __init__(self, env: gymnasium.Env, key: str | None) -> None:
        """Take masks from this key of the observation, which is then hidden from the networks; None takes them from `info`."""
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
            obs, mask = split_mask(obs, self.key)
        else:
            mask = info.get(MASK)
        if over:  # no action follows, and environments may give any mask then
            return {"observation": obs, MASK: np.ones(self.observation_space.choices, np.int8)}  # type: ignore[attr-defined]
        if mask is None:
            missing = f'info has no "{MASK}"' if self.key is None else f"the observation has no {self.key!r}"
            raise ValueError(f"{missing}; give one after every reset and step, or use --action-mask off")
        try:
            return {"observation": obs, MASK: flatten_mask(self.env.action_space, mask)}
        except ValueError as error:
            raise ValueError(f"{error} (--action-mask off ignores masks)") from None


def split_mask(obs: dict[str, Any], key: str) -> tuple[Any, Any]:
    """Return the observation without its mask, and the mask or None. If one other entry is left, it becomes the observation."""
    rest = {name: value for name, value in obs.items() if name != key}
    return next(iter(rest.values())) if len(rest) == 1 else rest, obs.get(key)


def _without(space: spaces.Dict, key: str) -> gymnasium.Space:
    """Return the space of observations without their mask, as `split_mask` returns them."""
    rest = {name: part for name, part in space.items() if name != key}
    if not rest:
        raise ProxRLError(f"the observation has no entry but {key!r}; with --action-mask off the policy observes it")
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(list(rest.items()))


def with_mask(env: gymnasium.Env, source: str) -> gymnasium.Env:
    """Return the environment with its mask added to its observations, if it has one; `source` is a value of --action-mask."""
    if source == OFF:
        return env
    require_spaces(env)
    size = total_choices(env.action_space)
    if source == AUTO:
        source = _find_source(env) if size else OFF
        return env if source == OFF else with_mask(env, source)
    if not size:
        raise ProxRLError(f"--action-mask {source}: the action space {env.action_space} has no choices to mask; leave it out")
    if source == INFO:
        return MaskedObservations(env, None)
    if not isinstance(env.observation_space, spaces.Dict) or source not in env.observation_space.spaces:
        raise ProxRLError(f"--action-mask {source}: the observation space has no such key; it is {env.observation_space}")
    return MaskedObservations(env, source)


def _find_source(env: gymnasium.Env) -> str:
    """Return where an environment gives its mask: look at the observation space, then at the info of a reset."""
    space = env.observation_space
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        return MASK
    try:
        _, info = env.reset(seed=0)
    except (Exception, SystemExit):
        return OFF  # the error is reported when the pool resets it
    return INFO if isinstance(info, dict) and info.get(MASK) is not None else OFF
