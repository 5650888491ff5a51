"""Environments that raise an error for forbidden actions, in a module that worker processes can import."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 10


class Doors(gymnasium.Env):
    """Three random doors are open at each step. Choosing the open one with the largest index has reward 1, other open ones 0;
    closed ones raise an error if `strict`, otherwise they have reward 0.

    Only the mask says which doors are open, in `info` or under `key` of the observation. `last` selects the mask of the last
    observation of an episode, and `fault` the one at step `at`, in every second environment of a process, beginning with `worst`.
    """

    made = 0

    def __init__(
        self,
        key: str = "",
        strict: bool = True,
        last: str = "given",
        fault: str = "",
        at: int = 4,
        worst: int = 1,
        doors: int = 8,
        others: int = 1,
    ) -> None:
        self.key, self.strict, self.last, self.doors, self.at = key, strict, last, doors, at
        self.fault = fault if Doors.made % 2 == worst else ""
        Doors.made += 1
        self.action_space = spaces.Discrete(doors, start=3)
        self.observation_space: gymnasium.Space = spaces.Box(-1, 1, (1,), np.float32)
        self.names = [f"seen.{number}" for number in range(others)]
        if key:
            entries = dict.fromkeys(self.names, self.observation_space)
            self.observation_space = spaces.Dict({**entries, key: spaces.MultiBinary(doors)})

    def observe(self, mask: Any) -> tuple[Any, dict[str, Any]]:
        seen = np.full(1, self.time / STEPS, np.float32)
        if not self.key:
            return seen, {} if mask is None else {"action_mask": mask}
        obs = dict.fromkeys(self.names, seen)
        return (obs if mask is None else {**obs, self.key: mask}), {}

    def mask(self) -> Any:
        self.open = np.sort(self.np_random.choice(self.doors, 3, replace=False))
        mask = np.zeros(self.doors, np.int8)
        mask[self.open] = 1
        what = self.last if self.time == STEPS else self.fault if self.time == self.at else "given"
        return {"missing": None, "empty": 0 * mask, "short": mask[1:]}.get(what, mask)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time = 0
        return self.observe(self.mask())

    def step(self, action: Any) -> Any:
        chosen = int(action) - 3
        if self.strict and chosen not in self.open:
            raise ValueError(f"door {chosen} is closed")
        reward = float(chosen == self.open[-1])
        self.time += 1
        obs, info = self.observe(self.mask())
        return obs, reward, self.time == STEPS, False, info


class Panel(gymnasium.Env):
    """Discrete actions of every kind and a continuous one, with masks in the form of `action_space.sample`."""

    observation_space = spaces.Tuple([spaces.MultiDiscrete([3], start=[-1]), spaces.Box(-1, 1, (2,), np.float64)])
    action_space = spaces.Dict(
        [
            ("lever", spaces.Discrete(3, start=1, dtype=np.int32)),
            ("a.b", spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,), np.float32)])),
            ("bits", spaces.MultiBinary(2)),
        ]
    )

    def observe(self) -> tuple[Any, dict[str, Any]]:
        def some(size: int) -> Any:
            mask = (self.np_random.random(size) < 0.5).astype(np.int8)
            mask[self.np_random.integers(size)] = 1
            return mask

        self.allowed = {
            "lever": some(3),
            "a.b": ((some(2), some(3)), None),
            "bits": self.np_random.integers(0, 3, 2).astype(np.int8),
        }
        seen = np.array([self.time % 3 - 1]), self.np_random.uniform(-1, 1, 2)
        return seen, {"action_mask": self.allowed}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time = 0
        return self.observe()

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in the action space")
        entries, _ = action["a.b"]
        fine = self.allowed["lever"][int(action["lever"]) - 1]
        fine &= all(mask[entry] for mask, entry in zip(self.allowed["a.b"][0], entries, strict=True))
        fine &= all(mask in (2, bit) for mask, bit in zip(self.allowed["bits"], action["bits"], strict=True))
        if not fine:
            raise ValueError(f"{action} is not allowed by {self.allowed}")
        self.time += 1
        obs, info = self.observe()
        return obs, float(action["lever"]), False, self.time == STEPS, info


class OnlyMask(Doors):
    """Its observation has only the mask."""

    def __init__(self) -> None:
        super().__init__("action_mask", others=0)


class Continuous(Doors):
    """Gives masks although its actions have no choices."""

    def __init__(self) -> None:
        super().__init__(strict=False)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)  # type: ignore[assignment]
