"""Tasks that need a memory: what matters is seen once, and asked for later. In a module that worker processes can import."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class PositionsOnly(gymnasium.ObservationWrapper):
    """CartPole without its velocities: position of the cart and angle of the pole."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        inner: Any = env.observation_space
        self.observation_space = spaces.Box(inner.low[::2], inner.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[::2]


class TMaze(gymnasium.Env):
    """A sign at the start says at which side the reward is, and is seen once. `length` steps forward lead to the junction.

    Turning in the corridor and going forward at the junction do nothing. Turning at the junction ends the episode: 1 at the
    side of the sign and 0 at the other. All steps of the shortest way together cost a little more than 0.25, and an episode
    lasts at most 2 * length steps.
    """

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)  # forward, left, right

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def observe(self) -> Any:
        sign = self.side if self.time == 0 else 0
        return np.array([sign, self.place == 0, self.place == self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.time, self.place, self.side = 0, 0, int(self.np_random.choice([-1, 1]))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.place == self.length and int(action) > 0
        right = over and (2 * int(action) - 3) == self.side
        self.place = min(self.place + (int(action) == 0), self.length)
        truncated = not over and self.time == 2 * self.length
        return self.observe(), float(right) - 0.25 / self.length, over, truncated, {"is_success": right}


class LastCard(gymnasium.Env):
    """Play all cards of a hand, each once. A card is shown before the first move, and wins the game if it is played last.

    The mask forbids cards that were played. While the card is shown, it only allows to pass, so that no move can depend on the
    card unless it is remembered.
    """

    def __init__(self, cards: int = 5) -> None:
        self.cards = cards
        self.observation_space = spaces.Box(0, 1, (2 * cards + 2,), np.float32)
        self.action_space = spaces.Discrete(cards + 1)  # a card, or pass

    def observe(self) -> tuple[Any, dict[str, Any]]:
        """Return the card that is shown and the number of cards left, each as a one-hot vector."""
        obs = np.zeros(2 * self.cards + 2, np.float32)
        obs[self.shown if self.passing else self.cards] = 1
        obs[self.cards + 1 + int(self.hand.sum())] = 1
        mask = np.append(self.hand * (not self.passing), self.passing).astype(np.int8)
        return obs, {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.hand, self.passing = np.ones(self.cards, np.int8), True
        self.shown = int(self.np_random.integers(self.cards))
        return self.observe()

    def step(self, action: Any) -> Any:
        card = int(action)
        if self.passing != (card == self.cards) or (not self.passing and not self.hand[card]):
            raise ValueError(f"{action} is not allowed now")
        won = not self.passing and self.hand.sum() == 1 and card == self.shown
        if not self.passing:
            self.hand[card] = 0
        self.passing = False
        obs, info = self.observe()
        return obs, float(won), not self.hand.any(), False, {**info, "is_success": bool(won)}
