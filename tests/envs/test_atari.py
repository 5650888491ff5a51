"""The three ways to run Atari games agree, options have their effect, and returns are those of whole games."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import proxrl
from commands import saved
from proxrl.config import Config
from proxrl.config.resolve import resolve
from proxrl.envs.atari import AtariOptions, ClassicAtari, rom_of
from proxrl.envs.registry import check_env, choose_vector, find_family, make_environments
from proxrl.errors import ProxRLError

pytest.importorskip("ale_py", reason="Atari needs ale-py")
pytest.importorskip("cv2", reason="the classic wrappers need OpenCV")
POOLS = ("inprocess", "native", "envpool")


class Played(NamedTuple):
    reward: list[float]
    terminated: list[int]  # steps after which an episode ended for the learner
    episodes: list[tuple[float, int]]  # whole games
    obs: NDArray[np.uint8]  # those before each action, and the last one


def play(vector: str, env: str, steps: int, seed: int = 0, **options: Any) -> Played:
    """Play the same game with the same actions; dummy steps do not count as steps."""
    settings = {"noop_max": 1, **options}
    environments = make_environments(env, num_envs=1, vector=vector, atari=AtariOptions(**settings))
    obs = [environments.reset(1)[0].copy()]
    actions = np.random.default_rng(seed).integers(0, int(environments.action_space.n), steps)  # type: ignore[attr-defined]
    played = Played([], [], [], np.empty(0, np.uint8))
    while len(played.reward) < steps:
        step = environments.step(actions[len(played.reward)][None])
        if not step.valid[0]:
            obs[-1] = step.obs[0].copy()
            continue
        played.reward.append(float(step.reward[0]))
        played.episodes.extend((episode.total_reward, episode.length) for episode in step.episodes)
        if step.terminated[0] or step.truncated[0]:
            played.terminated.append(len(played.reward))
        obs.append(step.obs[0].copy())
    environments.close()
    return played._replace(obs=np.array(obs))


@pytest.mark.parametrize(
    ("env", "steps"), [("PongNoFrameskip-v4", 1000), ("ALE/Breakout-v5", 400), ("SeaquestNoFrameskip-v4", 400)]
)
def test_all_pools_agree_frame_by_frame(env: str, steps: int) -> None:
    classic, native, pool = (play(vector, env, steps, episodic_life=False) for vector in POOLS)
    assert len(classic.episodes) >= 1
    for other in (native, pool):
        assert other.reward == classic.reward
        assert other.terminated == classic.terminated
        assert other.episodes == classic.episodes
    assert np.array_equal(native.obs, classic.obs)
    # EnvPool fills the first stack of a game with its first frame, the others with black frames; the newest frames are equal.
    assert np.array_equal(pool.obs[:, -1], classic.obs[:, -1])


@pytest.mark.parametrize("env", ["BreakoutNoFrameskip-v4", "SeaquestNoFrameskip-v4"])
def test_a_lost_life_ends_an_episode_but_not_the_game(env: str) -> None:
    steps = 700
    classic, native, pool = (play(vector, env, steps) for vector in POOLS)
    assert native.reward == classic.reward
    assert native.terminated == classic.terminated
    assert native.episodes == classic.episodes
    for played in (classic, native, pool):
        # Breakout has five lives, Seaquest four; whole games are several times as long as episodes.
        assert len(played.terminated) >= 3 * len(played.episodes) >= 3
        assert played.episodes[0][1] > 2 * played.terminated[0]
        assert played.episodes[0][1] in played.terminated


@pytest.mark.parametrize("vector", POOLS)
def test_rewards_are_signs_and_returns_are_points(vector: str) -> None:
    signs = play(vector, "SeaquestNoFrameskip-v4", 400, seed=1)
    assert set(signs.reward) == {0.0, 1.0}
    points = play(vector, "SeaquestNoFrameskip-v4", 400, seed=1, sign_rewards=False)
    assert max(points.reward) == 20.0
    assert points.episodes == signs.episodes
    start = 0
    for total, length in points.episodes:
        # Points of the dummy step after a lost life count for the game, although they are not learned from.
        assert sum(points.reward[start : start + length]) <= total
        start += length
    assert sum(total for total, _ in points.episodes) > 5 * sum(signs.reward[:start]) > 0


@pytest.mark.parametrize("vector", POOLS)
@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (4, 84, 84)), ({"frame_stack": 2, "screen_size": 64}, (2, 64, 64)), ({"grayscale": False}, (12, 84, 84))],
)
def test_shapes(vector: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    environments = make_environments("PongNoFrameskip-v4", num_envs=2, vector=vector, atari=AtariOptions(**options))
    obs = environments.reset(1)
    assert obs.shape == (2, *shape)
    assert obs.dtype == np.uint8
    assert environments.observation_space.shape == shape
    assert environments.step(np.zeros(2, np.int64)).obs.shape == (2, *shape)
    environments.close()


@pytest.mark.parametrize("vector", POOLS)
def test_each_option_changes_the_game(vector: str) -> None:
    default = play(vector, "BreakoutNoFrameskip-v4", 150)
    less_skip = play(vector, "BreakoutNoFrameskip-v4", 150, frame_skip=2)
    assert less_skip.terminated != default.terminated
    sticky = play(vector, "BreakoutNoFrameskip-v4", 150, sticky_actions=0.5)
    assert not np.array_equal(sticky.obs, default.obs)
    no_fire = play(vector, "BreakoutNoFrameskip-v4", 150, fire_reset=False)
    assert not np.array_equal(no_fire.obs[:20], default.obs[:20])
    full = make_environments("BreakoutNoFrameskip-v4", vector=vector, atari=AtariOptions(full_action_space=True))
    assert full.action_space.n == 18  # type: ignore[attr-defined]
    full.close()
    if vector != "envpool":
        # The maximum of two frames is never darker than the second frame.
        single = play(vector, "SeaquestNoFrameskip-v4", 40, max_pool=False, episodic_life=False)
        both = play(vector, "SeaquestNoFrameskip-v4", 40, episodic_life=False)
        assert (both.obs.astype(int) - single.obs >= -1).mean() > 0.999
        assert (both.obs > single.obs).any()


def truncated_lengths(vector: str, env: str, limit: int, steps: int, episodic_life: bool) -> list[int]:
    """Return the lengths of truncated games, with up to 30 no-op frames before each and random actions."""
    options = AtariOptions(max_episode_steps=limit, episodic_life=episodic_life)
    environments = make_environments(env, num_envs=4, vector=vector, atari=options)
    environments.reset(1)
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(steps):
        step = environments.step(rng.integers(0, int(environments.action_space.n), 4))  # type: ignore[attr-defined]
        lengths += [episode.length for episode in step.episodes if step.truncated[episode.env]]
    environments.close()
    return lengths


@pytest.mark.parametrize("env", ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4", "SeaquestNoFrameskip-v4"])
@pytest.mark.parametrize("vector", POOLS)
def test_the_time_limit_counts_agent_steps_but_not_the_frames_before_a_game(vector: str, env: str) -> None:
    assert truncated_lengths(vector, env, limit=10, steps=44, episodic_life=True) == [10] * 16
    assert set(truncated_lengths(vector, env, limit=120, steps=250, episodic_life=False)) == {120}


@pytest.mark.parametrize("vector", ["inprocess", "envpool"])
def test_the_time_limit_does_not_count_the_frames_after_a_lost_life(vector: str) -> None:
    assert set(truncated_lengths(vector, "SeaquestNoFrameskip-v4", limit=150, steps=320, episodic_life=True)) == {150}


def test_the_time_limit_of_ale_py_counts_the_dummy_step_after_a_lost_life() -> None:
    """docs/atari.md describes this limitation of ale-py's pool; if this test fails, ale-py has changed."""
    assert set(truncated_lengths("native", "SeaquestNoFrameskip-v4", limit=150, steps=320, episodic_life=True)) == {149}


@pytest.mark.parametrize("vector", POOLS)
def test_idle_frames_make_games_begin_differently(vector: str) -> None:
    environments = make_environments("SeaquestNoFrameskip-v4", num_envs=6, vector=vector, atari=AtariOptions())
    assert len({row[-1].tobytes() for row in environments.reset(2)}) > 1
    environments.close()


def test_a_life_lost_on_the_last_step_ends_the_game_as_terminated() -> None:
    game = ClassicAtari("breakout", AtariOptions(noop_max=0))
    game.reset(seed=1)
    lost_at = next(step for step in range(1, 200) if game.step(0)[2])
    game.close()
    limited = ClassicAtari("breakout", AtariOptions(noop_max=0, max_episode_steps=lost_at))
    first, _ = limited.reset(seed=1)
    for _ in range(lost_at):
        _, _, terminated, truncated, info = limited.step(0)
    assert (terminated, truncated, info["whole_episode"]) == (True, False, (0.0, lost_at))
    assert np.array_equal(limited.reset(seed=1)[0], first), "the next reset must begin a new game"
    limited.close()


def test_the_same_seed_gives_the_same_games() -> None:
    for vector in ("inprocess", "native"):
        first, again = (play(vector, "BreakoutNoFrameskip-v4", 60, noop_max=30) for _ in range(2))
        assert np.array_equal(first.obs, again.obs)


@pytest.mark.parametrize(
    ("env", "rom"),
    [
        ("PongNoFrameskip-v4", "pong"),
        ("ALE/MsPacman-v5", "ms_pacman"),
        ("Pong-v5", "pong"),
        ("SpaceInvaders-v5", "space_invaders"),
        ("CartPole-v1", None),
        ("HalfCheetah-v4", None),
        ("ALE/Pong-ram-v5", None),
    ],
)
def test_roms_of_environment_ids(env: str, rom: str | None) -> None:
    assert rom_of(env) == rom
    assert (find_family(env).name == "atari") == (rom is not None or env.startswith("ALE/"))


def test_options_and_settings_have_the_same_defaults() -> None:
    config = Config()
    specs = {spec.name: spec.default for spec in dataclasses.fields(AtariOptions)}
    assert specs.pop("frame_stack") == resolve("Pong-v5", {}).config.frame_stack  # by default only Atari games are stacked
    assert all(getattr(config, name) == default for name, default in specs.items())


def test_ale_py_is_the_default() -> None:
    family = find_family("PongNoFrameskip-v4")
    assert choose_vector("PongNoFrameskip-v4", 8, family) == "native"
    config = resolve("Pong-v5", {}).config
    assert (config.vector, config.encoder, config.trunk, config.clip, config.num_envs) == ("native", "nature", "shared", 0.1, 8)


def test_unsupported_options_raise_one_line_errors() -> None:
    with pytest.raises(ProxRLError, match="unknown environment 'PingNoFrameskip-v4'; did you mean PongNoFrameskip-v4"):
        check_env("PingNoFrameskip-v4")
    with pytest.raises(ProxRLError, match="--frame-skip is for Atari games, and CartPole-v1 is not one"):
        resolve("CartPole-v1", {"frame_skip": 2})
    with pytest.raises(ProxRLError, match="--env-kwargs are not for Atari games"):
        make_environments("PongNoFrameskip-v4", {"mode": 1})
    with pytest.raises(ProxRLError, match="--action-mask info: Atari games have no action masks"):
        make_environments("PongNoFrameskip-v4", action_mask="info")
    with pytest.raises(ProxRLError, match="EnvPool needs --noop-max 1"):
        make_environments("Pong-v5", vector="envpool", atari=AtariOptions(noop_max=0))
    with pytest.raises(ProxRLError, match="--no-max-pool"):
        make_environments("Pong-v5", vector="envpool", atari=AtariOptions(max_pool=False))


def test_a_reset_in_the_middle_of_a_game_begins_a_new_game() -> None:
    """A reset that does not follow a lost life begins a new game, as at the start of an evaluation."""
    game = ClassicAtari("breakout", AtariOptions(noop_max=0))
    first, _ = game.reset(seed=1)
    for _ in range(30):
        obs, _, terminated, _, info = game.step(2)
        if terminated:
            assert info["whole_episode"] is None
            obs, _ = game.reset()
    assert not np.array_equal(obs, first)
    assert np.array_equal(game.reset(seed=1)[0], first)
    game.close()


@pytest.mark.parametrize("vector", POOLS)
def test_training_works_with_every_pool(vector: str, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 64}
    result = proxrl.train("Breakout-v5", vector=vector, runs_dir=tmp_path, quiet=True, tensorboard=False, **settings)
    assert result.finished
    tensors, state = saved(result.path)
    assert tuple(tensors["policy.actor.convolutions.0.weight"].shape) == (32, 4, 8, 8)
    agent = proxrl.load(result.path)
    assert agent.act(np.zeros((4, 84, 84), np.uint8)) in range(4)
    assert agent.act(np.zeros((5, 4, 84, 84), np.uint8)).shape == (5,)
    assert state["observation_space"]["shape"] == [4, 84, 84]
