"""Atari games with one set of options, run in three ways: as single ALE environments, by ale-py's C++ pool, or by EnvPool.

All return stacks of frames, bytes of shape [k * channels, height, width], and rewards as training uses them. They report whole
games as episodes: a lost life ends an episode only for the learner, and the game continues.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from proxrl.envs.api import WHOLE_EPISODE, Autoreset, EpisodeTracker, episode_seed
from proxrl.envs.envpool import EnvPoolEnvs, task_packages
from proxrl.envs.info import VectorInfo
from proxrl.envs.wrapping import Wrapping
from proxrl.errors import ProxRLError
from proxrl.types import Step, Tree

FIRE = 1  # the index of this action in all games that have it
FRAMES_PER_GAME = 108_000  # the usual limit: half an hour


@dataclass(frozen=True)
class AtariOptions:
    """How games are preprocessed; the defaults are the Atari details of PPO."""

    noop_max: int = 30
    frame_skip: int = 4
    max_pool: bool = True
    episodic_life: bool = True
    fire_reset: bool = True
    grayscale: bool = True
    screen_size: int = 84
    frame_stack: int = 4
    sign_rewards: bool = True
    sticky_actions: float = 0.0
    full_action_space: bool = False
    max_episode_steps: int | None = None

    @property
    def max_steps(self) -> int:
        """The time limit of a game in agent steps."""
        return self.max_episode_steps or FRAMES_PER_GAME // self.frame_skip

    @property
    def observation_space(self) -> spaces.Box:
        channels = self.frame_stack * (1 if self.grayscale else 3)
        return spaces.Box(0, 255, (channels, self.screen_size, self.screen_size), np.uint8)

    def reward(self, points: NDArray[Any]) -> NDArray[np.float32]:
        """Return rewards for training: the points, or their sign (Atari detail 6)."""
        return np.sign(points).astype(np.float32) if self.sign_rewards else points.astype(np.float32)


def ale_installed() -> bool:
    """Return whether ale-py is installed, without importing it."""
    return importlib.util.find_spec("ale_py") is not None


@cache
def _games() -> dict[str, str]:
    """Return the ROM of each Gymnasium id that ale-py registers; nothing if it is not installed."""
    if not ale_installed():
        return {}
    import ale_py

    gymnasium.register_envs(ale_py)
    return {
        name: spec.kwargs["game"]
        for name, spec in gymnasium.registry.items()
        if "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type") != "ram"
    }


def rom_of(env: str) -> str | None:
    """Return the ROM of an id of Gymnasium (`ALE/Pong-v5`, `PongNoFrameskip-v4`) or EnvPool (`Pong-v5`), or None."""
    spec = gymnasium.registry.get(env)
    if re.fullmatch(r"(ALE/)?[A-Z]\w*-v[045]", env) is None or (spec is not None and "ale_py" not in str(spec.entry_point)):
        return None  # without importing ale-py or EnvPool, which takes a while
    if env in _games():
        return _games()[env]
    if f"ALE/{env}" in _games():
        return _games()[f"ALE/{env}"]
    return _envpool_roms().get(env)


def looks_like_atari(env: str) -> bool:
    """Return whether an id is that of an Atari game, by its form if neither ale-py nor EnvPool is installed."""
    return env.startswith("ALE/") or "NoFrameskip-v" in env or rom_of(env) is not None


@cache
def _envpool_roms() -> dict[str, str]:
    tasks = (task for task, package in task_packages().items() if package == "envpool.atari")
    return {task: re.sub(r"(?<!^)(?=[A-Z])", "_", task.removesuffix("-v5")).lower() for task in tasks}


def envpool_task(rom: str) -> str:
    """Return EnvPool's task for a game."""
    for task, name in _envpool_roms().items():
        if name == rom:
            return task
    raise ProxRLError(f"EnvPool has no game {rom}; use --vector native or inprocess")


# --- single games --------------------------------------------------------------------------------------------------------


class ClassicAtari(gymnasium.Env):
    """One game, with the preprocessing of the classic Atari wrappers."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 - declared like this in Gymnasium

    def __init__(self, rom: str, options: AtariOptions, render_mode: Any = None) -> None:
        import cv2
        from ale_py.env import AtariEnv

        self.options, self.render_mode, self.resize = options, render_mode, cv2.resize
        self.interpolation = cv2.INTER_AREA
        self.game = AtariEnv(
            game=rom,
            obs_type="grayscale" if options.grayscale else "rgb",
            frameskip=1,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            render_mode=render_mode,  # without a limit of frames, which would also count those before the first step
        )
        self.action_space, self.observation_space = self.game.action_space, options.observation_space
        self.fires = options.fire_reset and "FIRE" in self.game.get_action_meanings()[FIRE : FIRE + 1]
        self.stack = np.zeros(self.observation_space.shape, np.uint8)
        self.previous_frame: Any = None
        self.game_info: Any = {}
        self.life_lost = False
        self.lives = 0
        self.total, self.length = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new game, or continue the game after a lost life, with fire if that is needed."""
        super().reset(seed=seed)
        if self.life_lost:
            self.life_lost = False
            self.advance(FIRE if self.fires else 0)
            return self.stack.copy(), {}
        screen = self.begin(seed)
        self.stack[:] = 0
        self.push(screen)
        self.total, self.length, self.lives = 0.0, 0, self.game.ale.lives()
        return self.stack.copy(), {}

    def begin(self, seed: int | None) -> NDArray[Any]:
        """Begin a game and return its first screen, after a random number of no-op frames, the last of them with fire in games
        that need it (details 1 and 4); `noop_max` limits the sum of both, as in the pools.
        """
        screen, _ = self.game.reset(seed=seed)
        self.previous_frame = None
        noops = int(self.np_random.integers(1, self.options.noop_max + 1)) - self.fires if self.options.noop_max else 0
        for action in [0] * noops + [FIRE] * self.fires:
            screen, _, game_over, _, _ = self.game.step(action)
            if game_over:
                screen, _ = self.game.reset()
        return np.asarray(screen)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        points, game_over = self.advance(int(action))
        self.length += 1
        info = self.game_info
        lives = self.game.ale.lives()
        # In some games the lives are zero a few frames before the end, and bonus lives are added.
        lost = self.options.episodic_life and 0 < lives < self.lives
        self.lives = lives
        terminated, out_of_time = game_over or lost, self.length >= self.options.max_steps
        if game_over or out_of_time:
            info[WHOLE_EPISODE] = (self.total, self.length)
        elif lost:
            self.life_lost, info[WHOLE_EPISODE] = True, None
        reward = float(self.options.reward(np.float64(points)))  # type: ignore[arg-type]
        return self.stack.copy(), reward, terminated, out_of_time and not terminated, info

    def advance(self, action: int) -> tuple[float, bool]:
        """Repeat an action for `frame_skip` frames; push the maximum of the last two, since sprites flicker (detail 2).

        Returns the points gained and whether the game is over.
        """
        points, game_over = 0.0, False
        screens: list[Any] = []
        for _ in range(self.options.frame_skip):
            self.previous_frame = self.game.render() if self.render_mode == "rgb_array" else None
            screen, gained, game_over, _, self.game_info = self.game.step(action)
            points += float(gained)
            screens.append(screen)
            if game_over:
                break
        self.total += points
        self.push(np.maximum(screens[-1], screens[-2]) if self.options.max_pool and len(screens) > 1 else screens[-1])
        return points, game_over

    def push(self, screen: NDArray[Any]) -> None:
        """Resize a screen (detail 5) and append it to the stack (detail 7)."""
        size = self.options.screen_size
        small = self.resize(screen, (size, size), interpolation=self.interpolation)
        frame = small[None] if self.options.grayscale else small.transpose(2, 0, 1)
        self.stack[: -len(frame)] = self.stack[len(frame) :]
        self.stack[-len(frame) :] = frame

    def render(self) -> Any:
        """Return the screen in color, with the same maximum over two frames as in the observations."""
        frame: Any = self.game.render()
        both = self.options.max_pool and self.options.frame_skip > 1 and self.previous_frame is not None
        return np.maximum(frame, self.previous_frame) if both else frame

    def close(self) -> None:
        self.game.close()


def make_game(rom: str, options: AtariOptions, wrapping: Wrapping, render_mode: Any = None) -> gymnasium.Env:
    """Make one game, with wrappers around its preprocessing."""
    if wrapping.action_repeat != 1:
        raise ProxRLError(
            f"--action-repeat is not for Atari games, whose actions are repeated by --frame-skip: use --frame-skip"
            f" {options.frame_skip * wrapping.action_repeat} instead of both"
        )
    return wrapping.apply(ClassicAtari(rom, options, render_mode))


# --- pools ----------------------------------------------------------------------------------------------------------------


class AlePoolEnvs(VectorInfo):
    """ale-py's pool of games. The game continues after a lost life: the next step is a dummy step with fire."""

    autoreset = Autoreset.NEXT_STEP

    def __init__(self, rom: str, num_envs: int, options: AtariOptions, first_env: int = 0) -> None:
        from ale_py.vector_env import AtariVectorEnv

        # Its `episodic_life` begins a new game after every lost life; `life_loss_info` only reports them.
        self._pool = AtariVectorEnv(
            rom,
            num_envs,
            max_num_frames_per_episode=options.max_steps * options.frame_skip,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            img_height=options.screen_size,
            img_width=options.screen_size,
            grayscale=options.grayscale,
            stack_num=options.frame_stack,
            frameskip=options.frame_skip,
            maxpool=options.max_pool,
            noop_max=options.noop_max,
            life_loss_info=options.episodic_life,
            reward_clipping=False,
            use_fire_reset=options.fire_reset,
        )
        self.num_envs, self.options, self.frame_stack = num_envs, options, options.frame_stack
        self.observation_space: gymnasium.Space = options.observation_space
        self.action_space: gymnasium.Space = self._pool.single_action_space
        self.episode_counts = np.zeros(num_envs, np.int64)
        self._first_env = first_env
        meanings = self._pool.ale.get_action_set()
        self._dummy_action = FIRE if options.fire_reset and len(meanings) > FIRE and meanings[FIRE].value == FIRE else 0
        self._tracker = EpisodeTracker(num_envs)
        self._ended = np.zeros(num_envs, np.bool_)
        self._frame_number = np.zeros(num_envs, np.int64)  # in the current game

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        seeds = [episode_seed(seed, self._first_env + n, int(self.episode_counts[n])) for n in range(self.num_envs)]
        obs, info = self._pool.reset(seed=np.array(seeds))
        self.episode_counts += 1
        self._tracker.reset()
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._frame_number = info["episode_frame_number"].astype(np.int64)
        return self._stored(obs)

    def step(self, action: Tree) -> Step:
        valid = ~self._ended
        # If the game itself is over, the pool ignores the action and begins the next game.
        obs, points, terminated, truncated, info = self._pool.step(np.where(valid, action, self._dummy_action))
        frame_number = info["episode_frame_number"].astype(np.int64)
        terminated, truncated = terminated.astype(np.bool_), truncated.astype(np.bool_) & ~terminated.astype(np.bool_)
        # A dummy step after which the frame number is smaller began a new game, whatever the lives were before it.
        new_game = self._ended & (frame_number < self._frame_number)
        self._frame_number = frame_number
        ended = terminated | truncated
        self.episode_counts += self._ended
        over = truncated | (terminated & (info["lives"] == 0))
        # Some games end with lives left, which can be seen only in the step that begins the next game.
        episodes = self._tracker.finish(np.flatnonzero(new_game & (self._tracker.length > 0)))
        self._tracker.total_reward += np.where(new_game, 0, points)
        self._tracker.length += valid
        episodes += self._tracker.finish(np.flatnonzero(over), info)
        self._ended = ended
        reward, numbers = self.options.reward(points) * valid, self._read_info(info)
        return Step(self._stored(obs), reward, terminated, truncated, valid, None, episodes, numbers)

    def close(self) -> None:
        self._pool.close()

    def _stored(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.options.grayscale:
            return obs
        stacks = obs.transpose(0, 1, 4, 2, 3)  # [N, k, height, width, 3]
        return stacks.reshape(self.num_envs, *self.options.observation_space.shape)


class AtariEnvPool(EnvPoolEnvs):
    """EnvPool's pool of games."""

    def __init__(
        self, env: str, num_envs: int, options: AtariOptions, first_env: int = 0, render_mode: str | None = None
    ) -> None:
        if options.noop_max == 0:
            raise ProxRLError("EnvPool needs --noop-max 1 or more; use --vector native for 0")
        if not options.max_pool and options.frame_skip > 1:
            raise ProxRLError("EnvPool always takes the maximum of two frames; use --vector inprocess for --no-max-pool")
        super().__init__(
            env,
            num_envs,
            first_env,
            max_episode_steps=options.max_steps,
            stack_num=options.frame_stack,
            frame_skip=options.frame_skip,
            noop_max=options.noop_max,
            episodic_life=options.episodic_life,
            reward_clip=False,
            use_fire_reset=options.fire_reset,
            img_height=options.screen_size,
            img_width=options.screen_size,
            full_action_space=options.full_action_space,
            repeat_action_probability=options.sticky_actions,
            gray_scale=options.grayscale,
            **({} if render_mode is None else {"render_mode": render_mode}),
        )
        self.options, self.frame_stack = options, options.frame_stack

    def step(self, action: Tree) -> Step:
        obs, points, terminated, truncated, info = self._pool.step(action)
        valid = ~self._ended
        self.episode_counts += self._ended
        self._ended = terminated | truncated
        over = truncated | ((info["terminated"] != 0) & terminated)
        episodes = self._tracker.step(np.where(valid, points, np.float32(0)), valid, over, info)
        reward, numbers = self.options.reward(points) * valid, self._read_info(info)
        return Step(self._stored(obs), reward, terminated, truncated, valid, None, episodes, numbers)
