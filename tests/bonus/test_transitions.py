"""Transitions of a rollout: observations, true successors, actions as numbers, and whitened observations."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import LostEnvs, NextStepEnvs, Scripted, assemble, collect, make_rollout, run_ranks, scripted
from proxrl.bonus import transitions
from proxrl.bonus.action_code import ActionCode
from proxrl.bonus.transitions import Transitions
from proxrl.bonus.whitening import make_whitening
from proxrl.common import chunks
from proxrl.config import Config
from proxrl.engine.frames import FrameBuffer
from proxrl.envs.gymnasium import InProcessEnvs
from proxrl.envs.spaces import Masked
from proxrl.world.solo import Solo

CPU = torch.device("cpu")
SCRIPTS = [[(2, "terminated"), (3, "truncated")], [(3, "truncated"), (1, "terminated")]]
CONFIG = Config(num_envs=2, rollout_steps=8, num_minibatches=1, hidden_sizes=(8,), bonus=("icm",)).validate()


@pytest.mark.parametrize("pool", [InProcessEnvs, NextStepEnvs])
def test_every_step_leads_to_its_true_successor_in_the_same_episode(pool: Any) -> None:
    rollout = collect(assemble(CONFIG, pool(scripted(SCRIPTS))))
    moves = Transitions(rollout, Scripted.observation_space, CPU)
    rows = np.flatnonzero(rollout.valid)
    before, after = moves.before(rows), moves.after(rows)
    # Observations are (environment, episode, time): the successor is one step later in the same episode, also at its end.
    assert torch.equal(after, before + torch.tensor([0.0, 0.0, 1.0]))
    assert moves.known.all()
    assert (rollout.terminated | rollout.truncated)[rollout.valid].sum() >= 4


def test_successors_that_a_pool_discards_are_unknown() -> None:
    rollout = collect(assemble(CONFIG, LostEnvs(scripted(SCRIPTS))))
    moves = Transitions(rollout, Scripted.observation_space, CPU)
    ended = (rollout.terminated | rollout.truncated).ravel()
    assert (moves.known == ~ended).all()
    rows = np.flatnonzero(ended)
    assert torch.equal(moves.after(rows), moves.before(rows))


def test_stacked_frames_dicts_and_masks_are_gathered_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (5, 2, 4, 9, 9)).astype(np.uint8)
    buffer = FrameBuffer(5, 2, (4, 9, 9), np.uint8, stack=4)
    for t in range(5):
        buffer.store(t, frames[t])
    last = rng.integers(0, 255, (1, 4, 9, 9)).astype(np.uint8)
    image = spaces.Box(0, 255, (4, 9, 9), np.uint8)
    space = Masked(spaces.Dict({"image": image, "n": spaces.Discrete(3)}), 2)
    numbers, mask = np.arange(10).reshape(5, 2), np.ones((5, 2, 2), np.int8)
    rollout = make_rollout(
        obs={"observation": {"image": buffer, "n": numbers}, "action_mask": mask},
        reward=np.zeros((4, 2), np.float32),
        final_index=(np.array([1]), np.array([1])),
        final_obs={"observation": {"image": last, "n": np.array([77])}, "action_mask": mask[0, :1]},
    )
    moves = Transitions(rollout, space, CPU)
    after = moves.after(np.arange(8))
    assert after["n"].tolist() == [2, 3, 4, 77, 6, 7, 8, 9]
    expected = frames[1:].reshape(8, 4, 9, 9).copy()
    expected[3] = last[0]
    assert np.array_equal(after["image"].numpy(), expected)
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 3 * moves.row_size)
    assert [rows.tolist() for rows in moves.chunks()] == [[0, 1, 2], [3, 4, 5], [6, 7]]


# --- whitening ----------------------------------------------------------------------------------------------------------------


def test_observations_are_whitened_and_clipped_to_five() -> None:
    space = spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (2,), np.float32), "n": spaces.Discrete(3, start=1)})
    whiten = make_whitening(space, frame_stack=1)
    x = np.random.default_rng(0).normal(3, 2, (101, 4, 2)).astype(np.float32)
    valid = np.ones((100, 4), np.bool_)
    valid[50:] = False
    x[50:] = 1e6  # dummy steps leave no trace
    whiten.merge({"x": x, "n": np.ones((101, 4), np.int64)}, valid, Solo())
    result = whiten({"x": torch.tensor([[3.0, 1e9], [-1e9, 5.0]]), "n": torch.tensor([1, 3])})
    mean, std = x[:50].reshape(-1, 2).mean(0), x[:50].reshape(-1, 2).std(0)
    expected = [[(3 - mean[0]) / std[0], 5.0], [-5.0, (5 - mean[1]) / std[1]]]
    assert np.allclose(result["x"], expected, atol=1e-4)
    assert result["n"].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_pixels_of_the_newest_frame_are_whitened_in_chunks_as_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    space = spaces.Box(0, 255, (4, 9, 9), np.uint8)
    obs = np.random.default_rng(0).integers(0, 255, (7, 3, 4, 9, 9)).astype(np.uint8)
    valid = np.random.default_rng(1).random((6, 3)) < 0.7
    whiten = make_whitening(space, frame_stack=4)
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 2 * 3 * 4 * 81)
    whiten.merge(obs, valid, Solo())
    newest = obs[:-1][valid][:, 3:].astype(np.float64)
    result = whiten(torch.from_numpy(obs[0]))
    assert result.shape == (3, 1, 9, 9)
    assert np.allclose(result, np.clip((obs[0][:, 3:] - newest.mean(0)) / newest.std(0), -5, 5), atol=1e-3)

    def merge(world: Any) -> Any:
        part = make_whitening(space, frame_stack=4)
        envs = slice(0, 1) if world.rank == 0 else slice(1, 3)
        part.merge(obs[:, envs], valid[:, envs], world)
        return part(torch.from_numpy(obs[0]))

    for one in run_ranks(2, merge):
        assert torch.allclose(one, result, atol=1e-4)


# --- actions ------------------------------------------------------------------------------------------------------------------


def test_the_code_of_an_action_holds_all_its_parts() -> None:
    space = spaces.Dict(
        {
            "discrete": spaces.Discrete(3, start=5),
            "multi": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.MultiBinary(2),
            "box": spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, np.inf]), dtype=np.float64),
        }
    )
    code = ActionCode(space)
    action = {
        "bits": torch.tensor([[1, 0]]),
        "box": torch.tensor([[1.0, 7.0]], dtype=torch.float64),
        "discrete": torch.tensor([6]),
        "multi": torch.tensor([[1, 2]]),
    }
    ordered = {key: action[key] for key in space}
    result = code(ordered)
    parts = {"bits": [1, 0], "box": [0.5, 7.0], "discrete": [0, 1, 0], "multi": [0, 1, 0, 0, 1]}
    assert result.tolist() == [[float(number) for key in space for number in parts[key]]]
    # Zero outputs: log 3, log 2 and log 3 for the choices, log 2 for each bit, and half the squares of the numbers.
    errors = [np.log(3), np.log(2), np.log(3), np.log(2), np.log(2), 0.5 * 0.5**2, 0.5 * 49]
    assert code.error(torch.zeros_like(result), result).tolist() == pytest.approx([np.mean(errors)], rel=1e-5)


def test_means_are_over_the_values_of_all_ranks() -> None:
    def mean(world: Any) -> float:
        return transitions.mean_over_ranks(np.array([1.0, 2.0, 6.0][world.rank : 1 + 2 * world.rank], np.float32), world)

    assert run_ranks(2, mean) == [3.0, 3.0]
    assert transitions.mean_over_ranks(np.zeros(0, np.float32), Solo()) == 0.0
