"""Any `gymnasium.vector.VectorEnv`: a user's instance, or what a user's callable returns."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from proxrl.envs.api import env_kwargs_hint
from proxrl.envs.given import takes
from proxrl.envs.gymnasium import NativeVectorEnvs, find_callable
from proxrl.envs.masks import MASK
from proxrl.envs.spaces import map_observation
from proxrl.errors import ProxRLError, describe, one_line
from proxrl.types import Tree


class VectorEnvs(NativeVectorEnvs):
    """The adapter for a user's VectorEnv, which checks what Gymnasium's own classes guarantee."""

    def __init__(self, envs: VectorEnv, first_env: int = 0) -> None:
        try:
            check_autoreset(envs)
        except BaseException:
            envs.close()
            raise
        super().__init__(CheckedVector(envs), first_env)
        self.metadata, self.render_mode = envs.metadata, envs.render_mode

    def reset(self, seed: int, episode_counts: Any = None) -> Tree:
        try:
            return super().reset(seed, episode_counts)
        except Exception as error:
            raise ProxRLError(f"the vectorized environments failed in reset: {describe(error)}") from error

    def render(self) -> Any:
        """Return the frame of the first environment."""
        frames = self._envs.render()
        return frames[0] if isinstance(frames, tuple | list) else frames


class CheckedVector(VectorWrapper):
    """Raises an error for results that do not fit the spaces: NumPy would silently broadcast smaller ones."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._same_step = env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        self._ended = np.zeros(env.num_envs, np.bool_)  # by the step before

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._ended = np.zeros_like(self._ended)
        obs, info = self.env.reset(seed=seed, options=options)
        self._check_obs(obs)
        return obs, info

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        for name, column in (("rewards", rewards), ("terminations", terminated), ("truncations", truncated)):
            if np.shape(column) != (self.num_envs,):
                raise ValueError(f"{name} have shape {np.shape(column)}, but there are {self.num_envs} environments")
        before, self._ended = self._ended, np.asarray(terminated) | np.asarray(truncated)
        if self._same_step and "final_obs" not in info and self._ended.any():
            raise ValueError('with same-step autoreset, info must have the last observations as "final_obs"')
        if not self._same_step and before.any():
            rewards = np.where(before, 0, rewards)  # no reward belongs to a dummy step
        return obs, rewards, terminated, truncated, info

    def _check_obs(self, obs: Any) -> None:
        def check(leaf: gymnasium.Space, value: Any) -> None:
            expected = self.num_envs, *(leaf.shape or ())
            if np.shape(value) != expected:
                raise ProxRLError(f"the observations have shape {np.shape(value)}, but must have {expected}")

        map_observation(check, self.single_observation_space, obs)


def check_autoreset(envs: VectorEnv) -> None:
    """Raise an error if nothing would begin the next episode, or if it is not known when."""
    mode, name = envs.metadata.get("autoreset_mode"), type(envs.unwrapped).__name__
    if mode is AutoresetMode.DISABLED:
        raise ProxRLError(
            f"{name} has AutoresetMode.DISABLED, so that nothing begins the next episode;"
            " make it with autoreset_mode=AutoresetMode.NEXT_STEP"
        )
    if not isinstance(mode, AutoresetMode):
        raise ProxRLError(
            f"{name} does not say when it resets environments: set metadata['autoreset_mode'] to AutoresetMode.NEXT_STEP"
            " or AutoresetMode.SAME_STEP"
        )


def make_vectorized(
    env: str | Callable[..., Any],
    kwargs: dict[str, Any],
    num_envs: int,
    first_env: int = 0,
    action_mask: str = "auto",
) -> VectorEnvs:
    """Make the environments of a callable that returns a VectorEnv. If it takes `num_envs`, that is their number."""
    function = (find_callable(env) or env) if isinstance(env, str) else env
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    assert callable(function)
    number = {"num_envs": num_envs} if takes(function, "num_envs") and "num_envs" not in kwargs else {}
    try:
        made = function(**kwargs, **number)
    except ProxRLError:
        raise
    except Exception as error:
        raise ProxRLError(f"can't make {name}: {one_line(error)}{env_kwargs_hint(kwargs)}") from error
    if not isinstance(made, VectorEnv):
        raise ProxRLError(
            f"{name} returned {type(made).__name__}, but --vector native needs a gymnasium.vector.VectorEnv;"
            " use --vector inprocess or workers for single environments"
        )
    space = made.single_observation_space
    if action_mask == "auto" and isinstance(space, spaces.Dict) and MASK in space.spaces:
        made.close()
        raise ProxRLError(
            f"the observation has an {MASK}, but masks need single environments instead of a VectorEnv;"
            " --action-mask off treats it as an observation"
        )
    return VectorEnvs(made, first_env)
