"""Action masks end to end: found in environments, checked, respected in training, evaluation and by agents, and useful."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import proxrl
from harness import assemble, collect
from mask_envs import STEPS, Continuous, Doors, OnlyMask, Panel
from proxrl import ppo
from proxrl.collect.minibatches import Minibatches
from proxrl.config import Config
from proxrl.envs.masks import MASK, flatten_mask
from proxrl.envs.registry import make_environments
from proxrl.envs.spaces import Masked
from proxrl.errors import ProxRLError
from proxrl.look.evaluation import run_episodes
from proxrl.runs import checkpoint
from proxrl.world.solo import Solo

SEEN = spaces.Box(-1, 1, (1,), np.float32)
TRAINING: dict[str, Any] = {
    "total_steps": 2048,
    "num_envs": 2,
    "rollout_steps": 128,
    "num_minibatches": 4,
    "epochs": 4,
    "hidden_sizes": (8,),
    "quiet": True,
    "tensorboard": False,
}


@pytest.fixture(autouse=True)
def reset_count_of_environments() -> None:
    """Doors count their instances to decide which of them is faulty."""
    Doors.made = 0


# --- where masks are found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "source", "expected"),
    [
        ({}, "auto", Masked(SEEN, 8)),
        ({}, "info", Masked(SEEN, 8)),
        ({}, "off", SEEN),
        ({"key": MASK}, "auto", Masked(SEEN, 8)),
        ({"key": MASK}, MASK, Masked(SEEN, 8)),
        ({"key": MASK}, "off", spaces.Dict({"seen.0": SEEN, MASK: spaces.MultiBinary(8)})),
        ({"key": "legal"}, "legal", Masked(SEEN, 8)),
        # The key does not show that it is a mask.
        ({"key": "legal"}, "auto", spaces.Dict({"seen.0": SEEN, "legal": spaces.MultiBinary(8)})),
        # A single other entry becomes the observation; several stay a Dict.
        ({"key": "legal", "others": 2}, "legal", Masked(spaces.Dict({"seen.0": SEEN, "seen.1": SEEN}), 8)),
    ],
)
def test_the_observation_space_has_the_mask_and_the_observation(
    kwargs: dict[str, Any], source: str, expected: gymnasium.Space
) -> None:
    pool = make_environments(Doors, kwargs, 2, action_mask=source)
    obs = pool.reset(0)
    assert type(pool.observation_space) is type(expected)
    assert pool.observation_space == expected
    assert pool.action_space == spaces.Discrete(8, start=3)
    if isinstance(expected, Masked):
        assert list(obs) == list(expected) == [MASK, "observation"]
        assert obs[MASK].dtype == np.int8
        assert obs[MASK].sum(1).tolist() == [3, 3]
    pool.close()


def test_unsupported_masks_raise_one_line_errors() -> None:
    for env, source, words in [
        (Doors, "legal", "--action-mask legal: the observation space has no such key; it is Box"),
        (Continuous, "info", "--action-mask info: the action space .* has no choices to mask; leave it out"),
        (OnlyMask, "auto", "the observation has no entry but 'action_mask'; with --action-mask off"),
        ("CartPole-v1", "info", r"environment 0 failed in reset: ValueError: info has no \"action_mask\""),
    ]:
        with pytest.raises(ProxRLError, match=words) as caught:
            make_environments(env, None, 2, "inprocess", action_mask=source).reset(0)
        assert "\n" not in str(caught.value)
    with pytest.raises(ProxRLError, match="use --vector inprocess or workers"):
        make_environments("CartPole-v1", None, 2, "native", action_mask="info")
    assert make_environments(Continuous, action_mask="auto").observation_space == SEEN
    assert make_environments("CartPole-v1", None, 2, "native", action_mask="auto").observation_space.shape == (4,)


# --- what the masks are, in process and in workers ------------------------------------------------------------------------


def sampled(space: gymnasium.Space, allowed: Any) -> Any:
    """Return an allowed door."""
    return np.flatnonzero(allowed)[int(space.np_random.integers(allowed.sum()))] + 3


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
@pytest.mark.parametrize(("key", "last"), [("", "missing"), ("", "empty"), ("legal", "missing"), ("legal", "given")])
def test_masks_are_those_of_the_environment(key: str, last: str, vector: str) -> None:
    """Compare with environments in this process with the same seeds, over two ends of episodes."""
    source = key or "info"
    pool = make_environments(Doors, {"key": key, "last": last}, 2, vector, num_workers=1, action_mask=source)
    reference = make_environments(Doors, {"key": key}, 2, "inprocess", action_mask=source)
    try:
        obs, expected = pool.reset(5), reference.reset(5)
        space = spaces.Discrete(8, seed=0)
        ends = 0
        for _ in range(2 * STEPS + 3):
            open_doors = np.stack([env.unwrapped.open for env in reference._envs])  # type: ignore[attr-defined]
            bits = obs[MASK].copy()
            assert bits.sum(1).tolist() == [3, 3]
            assert (np.take_along_axis(bits, open_doors, 1) == 1).all()
            np.testing.assert_array_equal(obs["observation"], expected["observation"])
            actions = np.array([sampled(space, row) for row in bits])  # forbidden ones would raise
            step, expected_step = pool.step(actions), reference.step(actions)
            np.testing.assert_array_equal(step.reward, expected_step.reward)
            if step.final_obs is not None:
                ends += 1
                # No action follows, so everything is allowed, whatever mask the environment gave.
                assert step.final_obs[MASK].tolist() == [[1] * 8] * 2
                assert step.final_obs["observation"].tolist() == [[1.0]] * 2
            obs, expected = step.obs, expected_step.obs
        assert ends == 2
    finally:
        pool.close()
        reference.close()


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
def test_masks_in_the_form_of_gymnasium_and_actions_with_the_dtypes_of_the_space(vector: str) -> None:
    """Panel raises an error for actions that are not in its space, including their dtypes."""
    pool = make_environments(Panel, None, 2, vector, num_workers=1)
    twin = make_environments(Panel, None, 2, "inprocess")
    try:
        assert pool.observation_space == Masked(
            spaces.Tuple([spaces.MultiDiscrete([3], start=[-1]), spaces.Box(-1, 1, (2,), np.float32)]), 12
        )
        obs = pool.reset(1)
        twin.reset(1)
        for _ in range(2 * STEPS):
            masks = [env.unwrapped.allowed for env in twin._envs]  # type: ignore[attr-defined]
            np.testing.assert_array_equal(obs[MASK], [flatten_mask(Panel.action_space, mask) for mask in masks])
            rows = [Panel.action_space.sample(mask) for mask in masks]
            actions = {
                "lever": np.array([row["lever"] for row in rows]),
                "a.b": tuple(np.stack([row["a.b"][part] for row in rows]) for part in range(2)),
                "bits": np.stack([row["bits"] for row in rows]),
            }
            obs = pool.step(actions).obs
            twin.step(actions)
    finally:
        pool.close()
        twin.close()


@pytest.mark.parametrize("vector", ["inprocess", "workers"])
@pytest.mark.parametrize(
    ("key", "fault", "words"),
    [
        ("", "missing", 'environment 1 failed in step: ValueError: info has no "action_mask"; give one'),
        ("legal", "missing", "environment 1 failed in step: ValueError: the observation has no 'legal'; give one"),
        ("", "short", r"environment 1 failed in step: ValueError: .* shape \(7,\), but must hold 8 bits"),
        ("", "empty", "the action mask of environment 1 allows no action; allow one, or end the episode before that"),
        ("legal", "empty", "the action mask of environment 1 allows no action"),
    ],
)
def test_the_error_for_a_wrong_mask_names_the_environment(key: str, fault: str, words: str, vector: str, tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match=f"^{words}") as caught:
        proxrl.train(
            "mask_envs:Doors",
            env_kwargs={"key": key, "fault": fault},
            action_mask=key or "info",
            vector=vector,
            num_workers=1,
            runs_dir=tmp_path,
            **TRAINING,
        )
    assert "\n" not in str(caught.value)


def test_an_empty_mask_is_reported_with_the_number_of_its_environment_among_all_ranks() -> None:
    """In rollouts and in evaluations, on a rank whose first environment has the number 4."""
    config = Config(num_envs=2, rollout_steps=8, num_minibatches=2, hidden_sizes=(4,))
    environments = make_environments(Doors, {"fault": "empty"}, 2, "inprocess", first_env=4, action_mask="info")
    parts = assemble(config, environments, first_env=4)
    with pytest.raises(ProxRLError, match="the action mask of environment 5 allows no action"):
        collect(parts)
    with pytest.raises(ProxRLError, match="the action mask of environment 5 allows no action"):
        run_episodes(environments, parts.compute, parts.policy, quota=1, seed=0, deterministic=True, first_env=4)


# --- respected ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["autograd", "numpy"])
@pytest.mark.parametrize("key", ["", MASK, "legal"])
def test_training_evaluation_and_agents_never_choose_forbidden_actions(key: str, compute: str, tmp_path: Path) -> None:
    """Doors raises an error for a forbidden action, as the next test shows, so it is enough that runs finish."""
    source = key if key == "legal" else "auto"
    settings = {"env_kwargs": {"key": key, "last": "empty"}, "action_mask": source, "compute": compute}
    result = proxrl.train("mask_envs:Doors", runs_dir=tmp_path, **settings, **TRAINING)
    assert (result.step, result.finished) == (2048, True)
    for scores in proxrl.evaluate(result.path, episodes=6).values():
        assert scores.lengths == (STEPS,) * 6
    agent = proxrl.load(result.path)
    assert isinstance(agent.observation_space, Masked)
    env = Doors(key)
    for deterministic in (True, False):
        chosen = set()
        for episode in range(12):
            obs, info = env.reset(seed=episode)
            for _ in range(STEPS):
                action = agent.act(obs, deterministic, mask=info.get(MASK))
                assert env.action_space.contains(action)
                chosen.add(int(action))
                obs, _, _, _, info = env.step(action)
        assert len(chosen) >= 5  # with three of eight allowed at random, many have to be chosen


def test_doors_raise_an_error_without_masks(tmp_path: Path) -> None:
    with pytest.raises(ProxRLError, match=r"^environment \d failed in step: ValueError: door \d is closed$"):
        proxrl.train("mask_envs:Doors", action_mask="off", runs_dir=tmp_path, **TRAINING)


def test_masks_of_every_kind_of_action_are_respected(tmp_path: Path) -> None:
    result = proxrl.train("mask_envs:Panel", runs_dir=tmp_path, **TRAINING)
    assert (result.step, result.finished) == (2048, True)
    for scores in proxrl.evaluate(result.path, episodes=6).values():
        assert scores.lengths == (STEPS,) * 6
    agent, env = proxrl.load(result.path), Panel()
    for deterministic in (True, False):
        obs, info = env.reset(seed=0)
        for _ in range(3 * STEPS):  # the time limit is after a third, but the environment continues
            obs, _, _, _, info = env.step(agent.act(obs, deterministic, mask=info[MASK]))


def test_an_agent_accepts_batches_of_masks_and_raises_errors_for_wrong_ones(tmp_path: Path) -> None:
    result = proxrl.train("mask_envs:Doors", runs_dir=tmp_path, **{**TRAINING, "total_steps": 256})
    agent = proxrl.load(result.path)
    obs = np.zeros((8, 1), np.float32)
    one_each = np.eye(8, dtype=np.int8)
    for deterministic in (True, False):
        for masks in (one_each, list(one_each), one_each.astype(bool)):
            assert agent.act(obs, deterministic, mask=masks).tolist() == list(range(3, 11))
        assert agent.act(obs[0], deterministic, mask=one_each[5]) == 8
    empty = one_each.copy()
    empty[6] = 0
    for mask, words in [
        (None, r"trained with action masks: call act\(obs, mask=info\[\"action_mask\"\]\)"),
        (one_each[:7], "there are 7 masks for 8 observations; give one for each"),
        (one_each[:, 1:], r"does not fit the action space .* shape \(7,\), but must hold 8 bits"),
        (empty, "the action mask of environment 6 allows no action"),
    ]:
        with pytest.raises(ProxRLError, match=words):
            agent.act(obs, mask=mask)


@pytest.mark.parametrize("env", ["Doors", "Panel"])
def test_workers_and_this_process_learn_the_same_weights(env: str, tmp_path: Path) -> None:
    weights = []
    for vector in ("inprocess", "workers"):
        settings = {**TRAINING, "vector": vector, "num_workers": 2, "total_steps": 1024}
        result = proxrl.train(f"mask_envs:{env}", runs_dir=tmp_path / vector, **settings)
        weights.append(checkpoint.load(result.path / "checkpoints" / "latest.safetensors")[0])
    assert weights[0].keys() == weights[1].keys()
    assert len(weights[0]) > 10
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


# --- useful ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_masks_allow_returns_that_are_impossible_without_them(seed: int, tmp_path: Path) -> None:
    """Choosing the largest open door has reward 1 in each of ten steps, and only the mask says which are open.

    Always choosing the largest open door has return 10. A policy with masks can learn it by ranking the doors; a random policy
    with masks has 3.3. Without masks the best policy always chooses the last door, which is open in three of eight steps: 3.75.
    With seeds 1 to 4 the last 100 episodes had returns of 9.69 to 9.82 with masks (10 in evaluation) and 3.50 to 3.86 without.
    """
    learning = {**TRAINING, "total_steps": 12_288, "learning_rate": 5e-3, "seed": seed, "env_kwargs": {"strict": False}}
    result = proxrl.train("mask_envs:Doors", runs_dir=tmp_path / "masked", **learning)
    assert proxrl.evaluate(result.path, episodes=40)["deterministic"].mean >= 9.5
    assert result.mean_return is not None
    blind = proxrl.train("mask_envs:Doors", runs_dir=tmp_path / "off", action_mask="off", **learning)
    assert blind.mean_return is not None
    assert result.mean_return > 9 > 4.5 > blind.mean_return


@pytest.mark.parametrize("compute", ["numpy", "autograd"])
def test_learning_uses_the_masks_of_acting(compute: str) -> None:
    """Every row of a minibatch has the mask of acting, so that all ratios are 1 before the first update."""
    config = Config(num_envs=2, rollout_steps=64, num_minibatches=2, hidden_sizes=(8,), compute=compute)
    parts = assemble(config, make_environments(Doors, num_envs=2))
    parts.parameters.values += 0.5 * torch.randn(parts.parameters.values.shape, generator=torch.Generator().manual_seed(0))
    rollout = collect(parts)
    streams = ppo.random_streams(parts, 0)
    batch = ppo.advantage(parts, rollout, config.at(0))
    masks = rollout.obs[MASK][:-1].reshape(-1, 8)
    assert len(np.unique(masks, axis=0)) > 20
    for minibatch in Minibatches(config, parts.compute, Solo(), 0).draw(batch, streams, 1):
        log_prob = parts.compute.forward(minibatch).log_prob
        assert np.allclose(log_prob, minibatch.log_prob, atol=1e-5)
        # Three of eight doors are open: the mean probability is about 1/3 instead of 1/8.
        assert np.exp(np.asarray(log_prob)).mean() > 0.3
