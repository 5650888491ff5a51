"""Random play with action masks: find the masks where training finds them, and replace the actions that they forbid."""

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.common.tree import tree_map
from proxrl.envs.leaves import describe_structure, index_text, named_leaves
from proxrl.envs.masks import MASK, Bits, flatten_mask, group_sizes, total_choices
from proxrl.envs.spaces import choices, space_tree


class Masks:
    """The masks of one environment. `bits` is the current mask as a flat array of bits; None allows everything."""

    def __init__(self, env: gymnasium.Env) -> None:
        """The caller must have checked that `space_tree` supports the action space."""
        self.action_space = env.action_space
        self.observation_space: Any = getattr(env, "observation_space", None)  # of the policy: without the mask
        self.key: str | None = None  # of the mask in the observation, which takes precedence over info
        self.expected: bool | None = None  # whether there is a mask before every action; None until the first reset
        self.bits: Bits | None = None
        self._possible = total_choices(env.action_space) > 0
        self._random = np.random.default_rng(0)
        if self._possible and isinstance(self.observation_space, spaces.Dict) and MASK in self.observation_space.spaces:
            self.key, self.expected = MASK, True
            self.observation_space = spaces.Dict([(key, part) for key, part in self.observation_space.items() if key != MASK])

    def split(self, obs: Any, info: dict[str, Any]) -> tuple[Any, Any]:
        """Return what the policy observes, and the mask or None. Raises a TypeError if the observation lacks the mask's key."""
        if self.key is None:
            return obs, info.get(MASK) if self._possible else None
        if not isinstance(obs, dict) or self.key not in obs:
            raise TypeError(f" is {describe_structure(obs)}, not a dict with the key {self.key!r}")
        return {key: value for key, value in obs.items() if key != self.key}, obs[self.key]

    @property
    def location(self) -> str:
        """Where the environment returns its masks, as messages name it."""
        return f"info[{MASK!r}]" if self.key is None else f"observation[{self.key!r}]"

    def restart(self) -> None:
        """Restart the random numbers, so that a replayed episode gets the same replacements for the same actions and masks."""
        self._random, self.bits = np.random.default_rng(0), None

    def empty_part(self) -> str | None:
        """Return the path of the first discrete part of the action for which the mask allows no choice."""
        begin = 0
        for path, leaf in named_leaves(self.action_space):
            for index, size in enumerate(group_sizes(leaf)):
                if self.bits is not None and not self.bits[begin : begin + size].any():
                    return path + index_text(leaf.shape or (), index)
                begin += size
        return None

    def replace_forbidden(self, action: Any) -> Any:
        """Draw forbidden choices again from the allowed ones: uniform actions become uniform over those, as in `sample(mask)`."""
        if self.bits is None:
            return action
        remaining = self.bits

        def replace(leaf: gymnasium.Space, value: Any) -> Any:
            nonlocal remaining
            bits, remaining = remaining[: choices(leaf)], remaining[choices(leaf) :]
            return self._replace_in_leaf(leaf, value, bits) if len(bits) else value

        return tree_map(replace, space_tree(self.action_space), action)

    def _replace_in_leaf(self, leaf: gymnasium.Space, value: Any, bits: Bits) -> Any:
        start = np.ravel(getattr(leaf, "start", 0))  # MultiBinary has no `start`
        chosen = np.ravel(value).astype(np.int64) - start
        begin = 0
        for part, size in enumerate(group_sizes(leaf)):
            allowed = np.flatnonzero(bits[begin : begin + size])
            if len(allowed) and chosen[part] not in allowed:
                chosen[part] = self._random.choice(allowed)
            begin += size
        action: NDArray[Any] = (chosen + start).reshape(leaf.shape or ()).astype(leaf.dtype)
        return action[()] if isinstance(leaf, spaces.Discrete) else action  # a NumPy scalar, as `sample` returns


class ReplaceForbidden(gymnasium.Wrapper):
    """Replaces forbidden actions: Gymnasium's checker ignores masks, so its samples could make the environment raise an error."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._masks = Masks(env)

    def reset(self, **kwargs: Any) -> Any:  # Gymnasium's checker accepts no other name than `kwargs`
        returned = self.env.reset(**kwargs)
        self._masks.restart()
        self._read_mask(returned)
        return returned

    def step(self, action: Any) -> Any:
        returned = self.env.step(self._masks.replace_forbidden(action))
        self._read_mask(returned)
        return returned

    def _read_mask(self, returned: Any) -> None:
        """Read the mask, if there is a valid one. Other parts of the check report what is wrong with returned values."""
        self._masks.bits = None
        with contextlib.suppress(Exception):
            _, mask = self._masks.split(returned[0], returned[-1])
            self._masks.bits = None if mask is None else flatten_mask(self._masks.action_space, mask)
