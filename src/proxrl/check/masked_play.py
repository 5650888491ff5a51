"""Random play by the rules: where an environment's action masks are, as training looks for them, and actions they allow."""

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.check.leaves import describe_form, entry, named_leaves
from proxrl.common.tree import tree_map
from proxrl.envs.masks import MASK, Bits, flatten_mask, group_sizes, total_choices
from proxrl.envs.spaces import choices, space_tree


class Masks:
    """The masks of one environment; `bits` is the last one as a row of bits, None where all is allowed."""

    def __init__(self, env: gymnasium.Env) -> None:
        """Spaces that `space_tree` refuses have no masks; it is for the caller to refuse them."""
        self.action_space = env.action_space
        self.observation_space: Any = getattr(env, "observation_space", None)  # of what the policy observes: all but the mask
        self.key: str | None = None  # of the observation, which goes before info
        self.expected: bool | None = None  # whether there is one whenever somebody acts; None until the first reset tells
        self.bits: Bits | None = None
        self._possible = total_choices(env.action_space) > 0
        self._random = np.random.default_rng(0)
        if self._possible and isinstance(self.observation_space, spaces.Dict) and MASK in self.observation_space.spaces:
            self.key, self.expected = MASK, True
            self.observation_space = spaces.Dict([(key, part) for key, part in self.observation_space.items() if key != MASK])

    def split(self, obs: Any, info: dict[str, Any]) -> tuple[Any, Any]:
        """What the policy observes, and the mask as given, None where there is none; a TypeError says that its key is missing."""
        if self.key is None:
            return obs, info.get(MASK) if self._possible else None
        if not isinstance(obs, dict) or self.key not in obs:
            raise TypeError(f"part at the top is {describe_form(obs)}, not a dict with the key {self.key!r}")
        return {key: value for key, value in obs.items() if key != self.key}, obs[self.key]

    @property
    def place(self) -> str:
        """Where masks are, in words."""
        return f"info[{MASK!r}]" if self.key is None else f"observation[{self.key!r}]"

    def restart(self) -> None:
        """From here the same actions and masks give the same legal actions again, so that episodes can be replayed."""
        self._random, self.bits = np.random.default_rng(0), None

    def empty_part(self) -> str | None:
        """The first discrete part of the action that may be nothing at all, by name."""
        begin = 0
        for path, leaf in named_leaves(self.action_space):
            for index, size in enumerate(group_sizes(leaf)):
                if self.bits is not None and not self.bits[begin : begin + size].any():
                    return path + entry(leaf.shape or (), index)
                begin += size
        return None

    def legal(self, action: Any) -> Any:
        """The action, its forbidden choices drawn again from the allowed ones: uniform ones stay so, as in `sample(mask)`."""
        if self.bits is None:
            return action
        rest = self.bits

        def allow(leaf: gymnasium.Space, value: Any) -> Any:
            nonlocal rest
            bits, rest = rest[: choices(leaf)], rest[choices(leaf) :]
            return self._allow(leaf, value, bits) if len(bits) else value

        return tree_map(allow, space_tree(self.action_space), action)

    def _allow(self, leaf: gymnasium.Space, value: Any, bits: Bits) -> Any:
        start = np.ravel(getattr(leaf, "start", 0))  # a MultiBinary has none
        chosen = np.ravel(value).astype(np.int64) - start
        begin = 0
        for part, size in enumerate(group_sizes(leaf)):
            allowed = np.flatnonzero(bits[begin : begin + size])
            if len(allowed) and chosen[part] not in allowed:
                chosen[part] = self._random.choice(allowed)
            begin += size
        whole: NDArray[Any] = (chosen + start).reshape(leaf.shape or ()).astype(leaf.dtype)
        return whole[()] if isinstance(leaf, spaces.Discrete) else whole  # a number, as `sample` gives it


class Legal(gymnasium.Wrapper):
    """Swaps actions that the mask forbids: Gymnasium's checker knows no masks, and its samples may make the environment raise."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._masks = Masks(env)

    def reset(self, **kwargs: Any) -> Any:  # Gymnasium looks for this very name
        answer = self.env.reset(**kwargs)
        self._masks.restart()
        self._read(answer)
        return answer

    def step(self, action: Any) -> Any:
        answer = self.env.step(self._masks.legal(action))
        self._read(answer)
        return answer

    def _read(self, answer: Any) -> None:
        """Whatever is wrong with the answer is said elsewhere: here it only means that there is no mask."""
        self._masks.bits = None
        with contextlib.suppress(Exception):
            _, given = self._masks.split(answer[0], answer[-1])
            self._masks.bits = None if given is None else flatten_mask(self._masks.action_space, given)
