"""Atari games, three ways behind one set of options: single ALE environments, ale-py's C++ pool, EnvPool.

All give stacks of frames [k * channels, height, width] of bytes and rewards as training wants them, and report whole games: when
a life is lost an episode ends for the learner, but the game goes on, and only its end counts as an episode played.
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
from proxrl.errors import ProxRLError
from proxrl.types import Step, Tree

FIRE = 1  # its place among the actions of every game that has it
FRAMES_PER_GAME = 108_000  # half an hour, the usual limit


@dataclass(frozen=True)
class AtariOptions:
    """What is done to the game before the learner sees it; the defaults are the Atari details of PPO."""

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

    def reward(self, given: NDArray[Any]) -> NDArray[np.float32]:
        """As the learner sees it (Atari detail 6)."""
        return np.sign(given).astype(np.float32) if self.sign_rewards else given.astype(np.float32)


def ale_installed() -> bool:
    """Looked up without importing."""
    return importlib.util.find_spec("ale_py") is not None


@cache
def _games() -> dict[str, str]:
    """Gymnasium id → ROM, for all that ale-py registers; empty where it is not installed."""
    if not ale_installed():
        return {}
    import ale_py

    gymnasium.register_envs(ale_py)
    specs = gymnasium.registry.items()
    ours = ((name, spec) for name, spec in specs if "ale_py" in str(spec.entry_point) and spec.kwargs.get("obs_type") != "ram")
    return {name: spec.kwargs["game"] for name, spec in ours}


def rom_of(env: str) -> str | None:
    """The ROM behind an id of Gymnasium (`ALE/Pong-v5`, `PongNoFrameskip-v4`) or of EnvPool (`Pong-v5`); None if none is."""
    spec = gymnasium.registry.get(env)
    if re.fullmatch(r"(ALE/)?[A-Z]\w*-v[045]", env) is None or (spec is not None and "ale_py" not in str(spec.entry_point)):
        return None  # not asked for: importing ale-py or EnvPool takes a while
    if env in _games():
        return _games()[env]
    if f"ALE/{env}" in _games():
        return _games()[f"ALE/{env}"]
    return _envpool_roms().get(env)


def looks_like_atari(env: str) -> bool:
    """Also where nothing is installed that could tell."""
    return env.startswith("ALE/") or "NoFrameskip-v" in env or rom_of(env) is not None


@cache
def _envpool_roms() -> dict[str, str]:
    tasks = (task for task, package in task_packages().items() if package == "envpool.atari")
    return {task: re.sub(r"(?<!^)(?=[A-Z])", "_", task.removesuffix("-v5")).lower() for task in tasks}


def envpool_task(rom: str) -> str:
    """EnvPool's name of a game."""
    for task, name in _envpool_roms().items():
        if name == rom:
            return task
    raise ProxRLError(f"EnvPool has no game {rom}; use --vector native or inprocess")


# --- one game at a time ---------------------------------------------------------------------------------------------------


class ClassicAtari(gymnasium.Env):
    """One game with the classic wrappers in one: what each does is in the method of its name."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 - Gymnasium declares it so

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
            render_mode=render_mode,  # and no limit of frames, which would also count those before the first step
        )
        self.action_space, self.observation_space = self.game.action_space, options.observation_space
        self.fires = options.fire_reset and "FIRE" in self.game.get_action_meanings()[FIRE : FIRE + 1]
        self.stack = np.zeros(self.observation_space.shape, np.uint8)
        self.picture_before: Any = None
        self.life_lost = False
        self.lives = 0
        self.total, self.length = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new game, or right after a lost life the same game, with the ball in play again."""
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
        """A game after a random number of idle frames, the last of them fire where nothing would move without it (details 1 and
        4); at most `noop_max` in all, as both pools count them.
        """
        screen, _ = self.game.reset(seed=seed)
        self.picture_before = None
        idle = int(self.np_random.integers(1, self.options.noop_max + 1)) - self.fires if self.options.noop_max else 0
        for action in [0] * idle + [FIRE] * self.fires:
            screen, _, game_over, _, _ = self.game.step(action)
            if game_over:
                screen, _ = self.game.reset()
        return np.asarray(screen)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, game_over = self.advance(int(action))
        self.length += 1
        info: dict[str, Any] = {}
        lives = self.game.ale.lives()
        # Lives also fall to zero a few frames before some games are over, and rise by bonus.
        lost = self.options.episodic_life and 0 < lives < self.lives
        self.lives = lives
        terminated, out_of_time = game_over or lost, self.length >= self.options.max_steps
        if game_over or out_of_time:
            info[WHOLE_EPISODE] = (self.total, self.length)
        elif lost:
            self.life_lost, info[WHOLE_EPISODE] = True, None
        learned_reward = float(self.options.reward(np.float64(reward)))  # type: ignore[arg-type]
        return self.stack.copy(), learned_reward, terminated, out_of_time and not terminated, info

    def advance(self, action: int) -> tuple[float, bool]:
        """The same action for some frames; of the last two the brighter pixels, since sprites flicker (detail 2)."""
        reward, game_over = 0.0, False
        screens: list[Any] = []
        for _ in range(self.options.frame_skip):
            self.picture_before = self.game.render() if self.render_mode == "rgb_array" else None
            screen, points, game_over, _, _ = self.game.step(action)
            reward += float(points)
            screens.append(screen)
            if game_over:
                break
        self.total += reward
        self.push(np.maximum(screens[-1], screens[-2]) if self.options.max_pool and len(screens) > 1 else screens[-1])
        return reward, game_over

    def push(self, screen: NDArray[Any]) -> None:
        """A smaller picture (detail 5), the newest of the stack (detail 7)."""
        size = self.options.screen_size
        small = self.resize(screen, (size, size), interpolation=self.interpolation)
        frame = small[None] if self.options.grayscale else small.transpose(2, 0, 1)
        self.stack[: -len(frame)] = self.stack[len(frame) :]
        self.stack[-len(frame) :] = frame

    def render(self) -> Any:
        """In colours, and of the last two frames the brighter pixels where the learner gets them so."""
        picture: Any = self.game.render()
        both = self.options.max_pool and self.options.frame_skip > 1 and self.picture_before is not None
        return np.maximum(picture, self.picture_before) if both else picture

    def close(self) -> None:
        self.game.close()


# --- pools ----------------------------------------------------------------------------------------------------------------


class AlePoolEnvs:
    """ale-py's own vectorised games. A game goes on when a life is lost: the step after it is a dummy that fires."""

    autoreset = Autoreset.NEXT_STEP

    def __init__(self, rom: str, num_envs: int, options: AtariOptions, first_env: int = 0) -> None:
        from ale_py.vector_env import AtariVectorEnv

        # Its own `episodic_life` begins a new game at every lost life; `life_loss_info` only tells of it.
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
        self._relight = FIRE if options.fire_reset and len(meanings) > FIRE and meanings[FIRE].value == FIRE else 0
        self._games = EpisodeTracker(num_envs)
        self._ended = np.zeros(num_envs, np.bool_)
        self._frame = np.zeros(num_envs, np.int64)

    def reset(self, seed: int, episode_counts: Sequence[int] | None = None) -> Tree:
        self.episode_counts[:] = 0 if episode_counts is None else episode_counts
        seeds = [episode_seed(seed, self._first_env + n, int(self.episode_counts[n])) for n in range(self.num_envs)]
        obs, info = self._pool.reset(seed=np.array(seeds))
        self.episode_counts += 1
        self._games.reset()
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._frame = info["episode_frame_number"].astype(np.int64)
        return self._stored(obs)

    def step(self, action: Tree) -> Step:
        valid = ~self._ended
        # Where the game itself is over, the pool begins the next one whatever it is told.
        obs, given, terminated, truncated, info = self._pool.step(np.where(valid, action, self._relight))
        frame = info["episode_frame_number"].astype(np.int64)
        terminated, truncated = terminated.astype(np.bool_), truncated.astype(np.bool_) & ~terminated.astype(np.bool_)
        # A dummy step after which the game's own clock has gone back began a new game, whatever the lives said before it.
        new_game = self._ended & (frame < self._frame)
        self._frame = frame
        ended = terminated | truncated
        self.episode_counts += self._ended
        over = truncated | (terminated & (info["lives"] == 0))
        # Some games end by the clock with lives left: that shows only in the step that begins the next.
        episodes = self._games.finish(np.flatnonzero(new_game & (self._games.length > 0)))
        self._games.total_reward += np.where(new_game, 0, given)
        self._games.length += valid
        episodes += self._games.finish(np.flatnonzero(over))
        self._ended = ended
        return Step(self._stored(obs), self.options.reward(given) * valid, terminated, truncated, valid, None, episodes)

    def close(self) -> None:
        self._pool.close()

    def _stored(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.options.grayscale:
            return obs
        stacks = obs.transpose(0, 1, 4, 2, 3)  # [N, k, height, width, 3]
        return stacks.reshape(self.num_envs, *self.options.observation_space.shape)


class AtariEnvPool(EnvPoolEnvs):
    """EnvPool's games."""

    def __init__(
        self, env: str, num_envs: int, options: AtariOptions, first_env: int = 0, render_mode: str | None = None
    ) -> None:
        if options.noop_max == 0:
            raise ProxRLError("EnvPool needs --noop-max 1 or more; use --vector native for 0")
        if not options.max_pool and options.frame_skip > 1:
            raise ProxRLError("EnvPool always takes the brighter pixels of two frames; use --vector inprocess for --no-max-pool")
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
        obs, given, terminated, truncated, info = self._pool.step(action)
        valid = ~self._ended
        self.episode_counts += self._ended
        self._ended = terminated | truncated
        over = truncated | ((info["terminated"] != 0) & terminated)
        episodes = self._tracker.step(np.where(valid, given, np.float32(0)), valid, over)
        return Step(self._stored(obs), self.options.reward(given) * valid, terminated, truncated, valid, None, episodes)
