"""Successes in `info`, read from every kind of pool."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from info_envs import FORMS, Goals
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.envs.gymnasium import InProcessEnvs, NativeVectorEnvs
from proxrl.envs.info import as_number, success_of, successes_of
from proxrl.envs.workers import WorkerEnvs
from proxrl.types import Step

Makers = Sequence[Callable[[], gymnasium.Env]]


def vectorized(mode: AutoresetMode) -> Callable[[Makers], NativeVectorEnvs]:
    return lambda makers: NativeVectorEnvs(SyncVectorEnv(list(makers), autoreset_mode=mode))


POOLS: dict[str, Callable[[Makers], Any]] = {
    "inprocess": InProcessEnvs,
    "workers": partial(WorkerEnvs, num_workers=2),
    "next step": vectorized(AutoresetMode.NEXT_STEP),
    "same step": vectorized(AutoresetMode.SAME_STEP),
}


def play(pool: Any, steps: int) -> Iterator[Step]:
    try:
        pool.reset(1)
        for _ in range(steps):
            yield pool.step(np.zeros(pool.num_envs, np.int64))
    finally:
        pool.close()


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("truncates", [False, True])
def test_the_last_step_of_an_episode_tells_its_success(kind: str, truncates: bool) -> None:
    lengths = (3, 5, 4)
    makers = [partial(Goals, length, truncates=truncates) for length in lengths]
    found: dict[int, list[bool | None]] = {0: [], 1: [], 2: []}
    for step in play(POOLS[kind](makers), 40):
        for episode in step.episodes:
            found[episode.env].append(episode.success)
    for env, length in enumerate(lengths):
        count = 40 // (length + (kind == "next step"))  # which spends a step on each reset
        assert found[env] == [k % 3 == 0 for k in range(count)]


@pytest.mark.parametrize("kind", ["inprocess", "next step", "same step"])
@pytest.mark.parametrize("form", FORMS)
def test_a_success_may_have_any_form_of_a_truth_value_and_nonsense_is_none(kind: str, form: str) -> None:
    found = [e.success for step in play(POOLS[kind]([partial(Goals, 3, "success", form)] * 2), 8) for e in step.episodes]
    assert found == ([None] * 4 if form in ("text", "share", "nan") else [True, True, False, False])


def test_environments_that_do_not_tell_have_no_success() -> None:
    assert [e.success for step in play(InProcessEnvs([partial(Goals, 3, "goal")]), 9) for e in step.episodes] == [None] * 3
    pool = NativeVectorEnvs(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))
    episodes = [episode for step in play(pool, 60) for episode in step.episodes]
    assert episodes
    assert {episode.success for episode in episodes} == {None}


def test_is_success_counts_before_success() -> None:
    assert success_of({"success": True, "is_success": False}) is False
    assert success_of({"success": True, "is_success": None}) is True
    mixed = {"is_success": [True, None, False], "success": np.array([0.0, 1.0, 1.0]), "_success": np.array([1, 1, 0])}
    assert successes_of(mixed, 3) == [True, True, False]
    assert successes_of([{"success": 1}, None, {}], 3) == [True, None, None]  # as Gymnasium 0.29 gave them
    assert successes_of({"success": np.ones((2, 4)), "is_success": [[1], [1, 2]]}, 2) == [None, None]


def test_numbers_of_any_type_are_read_and_everything_else_is_nan() -> None:
    import torch

    for value in (2, 2.0, np.float32(2), np.int8(2), np.array(2), np.array([[2.0]]), torch.tensor(2), torch.tensor([2.0])):
        assert as_number(value) == 2.0
    for value in (None, "2", b"2", [2], {"a": 2}, np.array([1, 2]), torch.zeros(2), np.array("2"), object(), 2j):
        assert np.isnan(as_number(value))


class WithSuccess:
    """An EnvPool whose info has successes: true for environments whose last reward was positive."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.pool.step(action)
        info["is_success"] = reward > 0
        return obs, reward, terminated, truncated, info


def test_envpool_tells_successes_in_arrays() -> None:
    pytest.importorskip("envpool")
    pool = EnvPoolEnvs("FrozenLake-v1", 16)
    pool.reset(3)
    pool._pool = WithSuccess(pool._pool)
    rng = np.random.default_rng(0)
    episodes = [e for _ in range(600) for e in pool.step(rng.integers(1, 3, 16).astype(np.int32)).episodes]
    assert [episode.success for episode in episodes] == [episode.total_reward > 0 for episode in episodes]
    assert {episode.success for episode in episodes} == {True, False}
