"""Environments that are rendered after every step, before an automatic reset loses the last frame of an episode."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from proxrl.common.video import Frame
from proxrl.envs.api import Autoreset
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.envs.vector import VectorEnvs
from proxrl.errors import ProxRLError, one_line
from proxrl.types import Step, Tree


class RenderedFrames:
    """Frames that were rendered and not taken yet: the first one of an episode, then one after every step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._first: list[Frame] = []
        self._frames: list[Frame] = []
        self._error: ProxRLError | None = None

    def clear(self) -> None:
        """Discard the frames of an earlier recording, and the error that one of them may have caused."""
        self._first, self._frames, self._error = [], [], None

    def begin(self, render: Callable[[], Any]) -> None:
        """Render the beginning of an episode."""
        # Held back until the first step: the reset after the last recorded episode begins one that is not shown.
        self._first = self._render(render)

    def add(self, render: Callable[[], Any]) -> None:
        """Render the environment after a step."""
        self._frames += self._first + self._render(render)
        self._first = []

    def take(self) -> list[Frame]:
        """Return the frames since the last call. Raises if one of them could not be rendered."""
        self.check()
        frames, self._frames = self._frames, []
        return frames

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _render(self, render: Callable[[], Any]) -> list[Frame]:
        """Return one frame, or none and store the error: raised here, it would be reported as an error of the step."""
        try:
            frame = np.asarray(render())
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or frame.size == 0:
                form = f"{frame.dtype} {frame.shape}" if frame.ndim else "none"
                raise ValueError(f"render() must return an image [height, width, 3] of uint8, but returned {form}")
            return [frame.copy()]
        except Exception as error:
            self._error = ProxRLError(f"{self._name} can't be rendered: {one_line(error)}")
            return []


class RenderingWrapper(gymnasium.Wrapper):
    """A single environment that is rendered after every reset and step."""

    def __init__(self, env: gymnasium.Env, frames: RenderedFrames) -> None:
        super().__init__(env)
        self.frames = frames

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        self.frames.begin(self.env.render)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.frames.add(self.env.render)
        return result


class RenderingPool:
    """A pool whose first environment is rendered after every step.

    With next-step autoreset, the dummy step begins the next episode. With same-step autoreset, what is rendered after the last
    step of an episode is already the beginning of the next.
    """

    def __init__(self, pool: EnvPoolEnvs | VectorEnvs, frames: RenderedFrames) -> None:
        self.pool, self.frames = pool, frames
        self.num_envs, self.autoreset, self.frame_stack = pool.num_envs, pool.autoreset, pool.frame_stack
        self.observation_space, self.action_space = pool.observation_space, pool.action_space
        self.episode_counts, self.close = pool.episode_counts, pool.close
        self.record_info, self.info_names = pool.record_info, pool.info_names

    def reset(self, seed: int, episode_counts: Any = None) -> Tree:
        obs = self.pool.reset(seed, episode_counts)
        self.frames.begin(self.pool.render)
        return obs

    def step(self, action: Tree) -> Step:
        step = self.pool.step(action)
        (self.frames.add if step.valid[0] else self.frames.begin)(self.pool.render)
        if self.autoreset is Autoreset.SAME_STEP and (step.terminated[0] or step.truncated[0]):
            self.frames.begin(self.pool.render)
        return step
