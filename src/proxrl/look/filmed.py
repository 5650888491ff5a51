"""Environments that are looked at while they are stepped: pictures are taken where the last one of an episode is not lost."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from proxrl.common.video import Frame
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Step, Tree


class Film:
    """Pictures of the steps that were taken and not looked at yet: of the episode's beginning, then one after every step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening: list[Frame] = []
        self._frames: list[Frame] = []
        self._problem: ProxRLError | None = None

    def clear(self) -> None:
        """Forget what an earlier recording has left: its pictures, and why one of them failed."""
        self._opening, self._frames, self._problem = [], [], None

    def begin(self, render: Callable[[], Any]) -> None:
        # Kept back until the episode moves: the one that begins as the last one ends may be nobody's.
        self._opening = self._shoot(render)

    def add(self, render: Callable[[], Any]) -> None:
        self._frames += self._opening + self._shoot(render)
        self._opening = []

    def take(self) -> list[Frame]:
        """What has come since the last call."""
        self.check()
        frames, self._frames = self._frames, []
        return frames

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _shoot(self, render: Callable[[], Any]) -> list[Frame]:
        """A failure is kept for whoever looks: within a step it would be told as the environment's."""
        try:
            picture = np.asarray(render())
            if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
                form = f"{picture.dtype} {picture.shape}" if picture.ndim else "none"
                raise ValueError(f"render() must give a picture [height, width, 3] of uint8, and gave {form}")
            return [picture.copy()]
        except Exception as error:
            self._problem = ProxRLError(f"{self._name} can't be drawn: {one_line(error)}")
            return []


class FilmedEnv(gymnasium.Wrapper):
    """A single environment, whose last picture must be taken before it is reset."""

    def __init__(self, env: gymnasium.Env, film: Film) -> None:
        super().__init__(env)
        self.film = film

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed, options=options)
        self.film.begin(self.env.render)
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self.film.add(self.env.render)
        return answer


class FilmedPool:
    """EnvPool with one environment, whose dummy step begins the next episode."""

    def __init__(self, pool: EnvPoolEnvs, film: Film) -> None:
        self.pool, self.film = pool, film
        self.num_envs, self.autoreset, self.frame_stack = pool.num_envs, pool.autoreset, pool.frame_stack
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        self.episode_counts, self.close = pool.episode_counts, pool.close

    def reset(self, seed: int, episode_counts: Any = None) -> Tree:
        obs = self.pool.reset(seed, episode_counts)
        self.film.begin(self.pool.render)
        return obs

    def step(self, action: Tree) -> Step:
        step = self.pool.step(action)
        (self.film.add if step.valid[0] else self.film.begin)(self.pool.render)
        return step
