"""Stacked observations, compared with stacks of the plain observations' history, for every pool and both autoreset styles."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import LostEnvs, NextStepEnvs, Scripted, assemble, collect, scripted, train
from proxrl import ppo
from proxrl.common.tree import tree_leaves, tree_map
from proxrl.config import Config
from proxrl.engine.frames import FrameBuffer
from proxrl.envs.api import Autoreset
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.envs.registry import make_environments
from proxrl.envs.spaces import Masked, is_image, space_tree
from proxrl.envs.stacking import StackedEnvs, stack_frames, stacked_space
from proxrl.errors import ProxRLError
from wrapped_envs import Album

SCRIPTS = [[(3, "terminated"), (5, "truncated"), (1, "truncated")], [(4, "truncated"), (2, "terminated")]]


def stacked_by_hand(space: Any, history: list[Any], stack: int) -> Any:
    """Stack the last entries of an episode's observations of one leaf, the first one repeated before them."""
    frames = [history[0]] * (stack - len(history)) + history[-stack:]
    if not isinstance(space, spaces.Box):
        return history[-1]
    if space.shape == (9, 8, 3):
        return np.concatenate([frame.transpose(2, 0, 1) for frame in frames])
    if space.shape == (2, 8, 9):
        return np.concatenate(frames)
    return np.stack(frames) if space.shape == (8, 9) else np.concatenate([np.ravel(frame) for frame in frames])


def check_against_history(plain: Any, stacked: Any, stack: int, steps: int = 40) -> int:
    """Step both pools alike and compare every stack; return the number of last observations that were compared."""
    leaves, rng, compared = list(tree_leaves(space_tree(plain.observation_space))), np.random.default_rng(0), 0
    histories: list[list[list[Any]]] = []  # by environment and leaf

    def compare(stacks: Any, env: int, row: int) -> None:
        for leaf, history, array in zip(leaves, histories[env], tree_leaves(stacks), strict=True):
            np.testing.assert_array_equal(array[row], stacked_by_hand(leaf, history, stack))

    obs, stacks = plain.reset(7), stacked.reset(7)
    histories = [[[np.copy(array[n])] for array in tree_leaves(obs)] for n in range(plain.num_envs)]
    for _ in range(steps):
        for n in range(plain.num_envs):
            compare(stacks, n, n)
        action = rng.integers(0, 2, plain.num_envs)
        step, twin = plain.step(action), stacked.step(action)
        obs, stacks, ended = step.obs, twin.obs, np.flatnonzero(step.terminated | step.truncated)
        for one, other in zip(step[1:5], twin[1:5], strict=True):
            np.testing.assert_array_equal(one, other)
        assert step.episodes == twin.episodes
        assert (step.final_obs is None) == (twin.final_obs is None)
        for row, n in enumerate(ended) if step.final_obs is not None else ():
            for history, array in zip(histories[n], tree_leaves(step.final_obs), strict=True):
                history.append(np.copy(array[row]))
            compare(twin.final_obs, n, row)
            compared += 1
        for n in range(plain.num_envs):
            begins = not step.valid[n] if plain.autoreset is Autoreset.NEXT_STEP else n in ended
            for history, array in zip(histories[n], tree_leaves(obs), strict=True):
                history[:] = [] if begins else history
                history.append(np.copy(array[n]))
    np.testing.assert_array_equal(plain.episode_counts, stacked.episode_counts)
    return compared


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs, LostEnvs])
@pytest.mark.parametrize("stack", [2, 3, 4])
def test_stacks_are_those_of_the_history(pool: Any, stack: int) -> None:
    compared = check_against_history(pool(scripted(SCRIPTS)), StackedEnvs(pool(scripted(SCRIPTS)), stack), stack)
    assert (compared > 10) == (pool is InProcessEnvs)


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
def test_every_box_of_a_nested_observation_is_stacked(vector: str) -> None:
    make = functools.partial(make_environments, "wrapped_envs:Album", None, 2, vector, 1, action_mask="info")
    plain, stacked = make(), stack_frames(make(), 3)
    try:
        space: Any = stacked.observation_space
        assert isinstance(space, Masked)
        inner = space["observation"]
        assert [inner[key].shape for key in ("camera", "first", "gray")] == [(9, 9, 8), (6, 8, 9), (3, 8, 9)]
        assert inner["rest"] == spaces.Tuple(
            [spaces.Discrete(50), spaces.Box(-9, 99, (12,), np.float32), spaces.Box(-1, 99, (3,), np.float32)]
        )
        assert check_against_history(plain, stacked, 3) > 10
    finally:
        plain.close()
        stacked.close()


@pytest.mark.parametrize("vector", ["native", "envpool"])
def test_stacks_of_real_pools_with_dummy_steps(vector: str) -> None:
    if vector == "envpool":
        pytest.importorskip("envpool")
    make = functools.partial(make_environments, "CartPole-v1", None, 3, vector)
    plain, stacked = make(), stack_frames(make(), 4)
    check_against_history(plain, stacked, 4, steps=80)
    assert plain.episode_counts.min() > 1
    plain.close()
    stacked.close()


@pytest.mark.parametrize(("channels", "shape"), [("auto", (9, 9, 8)), ("last", (9, 9, 8)), ("first", (27, 8, 3))])
def test_image_channels_say_which_axis_is_stacked(channels: str, shape: tuple[int, ...]) -> None:
    camera = Album.observation_space["camera"]
    assert stacked_space(camera, 3, channels).shape == shape


def test_bounds_are_those_of_each_observation() -> None:
    box = spaces.Box(np.array([0, -1], np.float32), np.array([2, 5], np.float32))
    assert stacked_space(box, 2) == spaces.Box(np.array([0, -1] * 2, np.float32), np.array([2, 5] * 2, np.float32))


def test_observations_without_a_box_are_refused() -> None:
    with pytest.raises(ProxRLError, match="stacks Box observations, but the observation space is Discrete"):
        stack_frames(make_environments("FrozenLake-v1", None, 1, "inprocess"), 2)
    pool = InProcessEnvs(scripted(SCRIPTS))
    assert stack_frames(pool, 1) is pool


class Bytes(Scripted):
    """A Scripted whose observation is a small image that shows its index, its episode and its step."""

    observation_space: gymnasium.Space = spaces.Box(0, 255, (8, 7, 3), np.uint8)

    def observe(self) -> Any:
        return np.broadcast_to(np.array([self.index, self.episode % 100, self.time], np.uint8), (8, 7, 3)).copy()


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
@pytest.mark.parametrize("images", [False, True])
def test_the_first_ratio_is_one_and_values_are_of_true_successors(pool: Any, images: bool) -> None:
    makers: Any = [lambda n=n, s=s: (Bytes if images else Scripted)(n, s) for n, s in enumerate(SCRIPTS)]
    settings: dict[str, Any] = {"num_envs": 2, "rollout_steps": 24, "num_minibatches": 2, "total_steps": 96, "frame_stack": 3}
    config = Config(env="Scripted-v0", **settings, normalize_observations=not images, encoder="small" if images else None)
    parts = assemble(config, StackedEnvs(pool(makers), 3))
    assert is_image(parts.environments.observation_space) == images
    rollout = collect(parts)
    assert isinstance(rollout.obs, FrameBuffer) == images  # every frame of an image is stored once
    now = config.at(0)
    batch = ppo.advantage(parts, rollout, now)
    minibatch = next(iter(parts.minibatches.draw(batch, ppo.random_streams(parts, 0), 1)))
    outputs = parts.compute.forward(minibatch)
    np.testing.assert_allclose(np.asarray(outputs.log_prob), np.asarray(minibatch.log_prob), atol=1e-5)
    # The successor of a truncated step is the stack that ends with the true last observation.
    evaluation = parts.compute.evaluate(rollout)
    t, n = next((int(t), int(n)) for t, n in np.argwhere(rollout.truncated[:-1]) if rollout.valid[t, n])
    episode = [0, 0] if n == 1 else [1, 1]
    length = 4 if n == 1 else 5
    env = makers[n]()
    env.episode, last = episode[0], []
    for env.time in range(length - 2, length + 1):
        last.append(env.observe())
    stacked = np.concatenate([frame.transpose(2, 0, 1) for frame in last] if images else last)[None]
    value = parts.policy.values(parts.policy.preprocess(torch.from_numpy(stacked)), (), None).detach()
    np.testing.assert_allclose(float(np.asarray(evaluation.next_value)[t, n, 0]), float(value[0, 0]), atol=1e-4)


def test_a_policy_learns_from_what_only_a_stack_shows() -> None:
    """The right action is the one that was shown a step ago, so without a stack the return is that of chance, 8 of 16."""

    class Recall(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def show(self) -> Any:
            self.before, self.sign = self.sign, int(self.np_random.integers(2))
            return np.array([2 * self.sign - 1], np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.sign, self.time = 0, 0
            return self.show(), {}

        def step(self, action: Any) -> Any:
            reward, self.time = float(action == self.before and self.time > 0), self.time + 1
            return self.show(), reward, False, self.time == 17, {}

    returns = {}
    for stack in (1, 2):
        config = Config(env="Recall-v0", num_envs=8, rollout_steps=34, total_steps=10_880, learning_rate=3e-3, frame_stack=stack)
        session = train(assemble(config, stack_frames(InProcessEnvs([Recall] * 8), stack)))
        returns[stack] = np.mean([episode.total_reward for episode in session.episodes[-40:]])
    assert returns[2] > 14 > 10 > returns[1]


def test_tree_of_stacks_shares_no_memory_with_last_observations() -> None:
    pool = StackedEnvs(InProcessEnvs(scripted(SCRIPTS)), 2)
    pool.reset(0)
    for _ in range(3):
        step = pool.step(np.zeros(2, np.int64))
    assert step.final_obs is not None
    before = step.final_obs.copy()
    tree_map(lambda array: array.fill(0), step.obs)
    np.testing.assert_array_equal(step.final_obs, before)
