"""--log-info: means over the steps that count and at the ends of episodes, from every kind of pool."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import proxrl
from commands import metrics
from harness import ThreadWorld, assemble, collect, run_ranks
from info_envs import Goals
from proxrl import ppo
from proxrl.build import trainee
from proxrl.config import Config
from proxrl.envs.envpool import EnvPoolEnvs
from proxrl.envs.gymnasium import InProcessEnvs, NativeVectorEnvs
from proxrl.envs.registry import make_environments
from proxrl.envs.workers import WorkerEnvs
from proxrl.log.console import Console
from proxrl.runs.evaluations import Scores
from proxrl.runs.folder import RunFolder
from proxrl.session import Observers, Session

KEYS = ("speed", "terms/forward", "final_only", "place", "nothing")
LENGTHS = (3, 5, 7)
POOLS: dict[str, Any] = {
    "inprocess": InProcessEnvs,
    "workers": functools.partial(WorkerEnvs, num_workers=2),
    "next step": lambda makers: NativeVectorEnvs(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "same step": lambda makers: NativeVectorEnvs(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)),
}


def expected(kind: str, rows: int, last_row: int = 3) -> np.ndarray:
    """Return the sums for the keys, counted step by step; in the last row, only the first `last_row` environments count."""
    steps: dict[str, list[float]] = {key: [] for key in KEYS}
    ends: dict[str, list[float]] = {key: [] for key in KEYS}
    for env, length in enumerate(LENGTHS):
        episode = time = 0
        for row in range(rows):
            if time == length:
                episode, time = episode + 1, 0
                if kind == "next step":
                    continue  # the dummy step
            time += 1
            if row == rows - 1 and env >= last_row:
                continue
            numbers = {"speed": 10 * episode + time, "terms/forward": 2 * (10 * episode + time)}
            numbers |= {"final_only": 100 + episode} if time == length else {}
            for key, number in numbers.items():
                steps[key].append(number)
                if time == length:
                    ends[key].append(number)
    return np.array([[sum(steps[key]), len(steps[key]), sum(ends[key]), len(ends[key])] for key in KEYS], np.float64)


@pytest.mark.parametrize("kind", POOLS)
def test_sums_count_every_valid_step_once_and_no_reset(kind: str) -> None:
    pool = POOLS[kind]([functools.partial(Goals, length) for length in LENGTHS])
    config = Config(num_envs=3, rollout_steps=16, num_minibatches=2, log_info=KEYS)
    try:
        parts = assemble(config, pool)
        rollout = collect(parts)
        np.testing.assert_array_equal(parts.collector.progress(rollout).info, expected(kind, 16))
        assert {"speed", "terms/forward"} <= set(pool.info_names())
        assert not {"place", "_speed"} & set(pool.info_names())
        if kind == "inprocess":  # 20 steps are 6 rows of 3, and 2 in row 7, in which the episode of the third environment ends
            parts = assemble(config, InProcessEnvs([functools.partial(Goals, length) for length in LENGTHS]))
            spent = collect(parts, budget=20)
            assert (spent.steps, len(spent.episodes)) == (20, 3)
            np.testing.assert_array_equal(parts.collector.progress(spent).info, expected(kind, 7, last_row=2))
    finally:
        pool.close()


def test_nothing_is_recorded_without_keys() -> None:
    parts = assemble(Config(num_envs=1, rollout_steps=8, num_minibatches=1), InProcessEnvs([Goals]))
    assert parts.collector.watchers == []
    assert parts.environments.step(np.zeros(1, np.int64)).info is None  # type: ignore[attr-defined]
    assert parts.collector.progress(collect(parts)).info.shape == (0, 4)


def test_the_end_of_an_episode_that_is_reported_on_the_dummy_step_has_the_numbers_of_its_last_step() -> None:
    """As in ale-py's pool, for games that end with lives left."""
    pool = POOLS["next step"]([functools.partial(Goals, 3)])
    pool_step = pool.step
    late: list[Any] = []

    def step(action: Any) -> Any:
        result = pool_step(action)
        reported, late[:] = list(late), result.episodes
        return result._replace(episodes=reported)

    pool.step = step
    parts = assemble(Config(num_envs=1, rollout_steps=8, num_minibatches=2, log_info=("speed",)), pool)
    sums = parts.collector.progress(collect(parts)).info
    assert sums.tolist() == [[1 + 2 + 3 + 11 + 12 + 13, 6, 3 + 13, 2]]


def test_envpool_and_the_atari_pools_have_their_own_numbers() -> None:
    pytest.importorskip("envpool")
    pool = EnvPoolEnvs("CartPole-v1", 4, max_episode_steps=6)
    parts = assemble(Config(num_envs=4, rollout_steps=14, num_minibatches=2, log_info=("elapsed_step", "players/env_id")), pool)
    sums = parts.collector.progress(collect(parts)).info
    assert sums[0].tolist() == [4 * 2 * (1 + 2 + 3 + 4 + 5 + 6), 48, 8 * 6, 8]  # two episodes of 6 steps, and a dummy step each
    assert sums[1].tolist() == [12 * (0 + 1 + 2 + 3), 48, 2 * (0 + 1 + 2 + 3), 8]
    pytest.importorskip("ale_py")
    for vector in ("inprocess", "native", "envpool"):
        games = make_environments("ALE/Breakout-v5", num_envs=2, vector=vector)
        games.record_info(("lives",))
        games.reset(1)
        try:
            assert games.step(np.zeros(2, np.int64)).info.tolist() == [[5.0], [5.0]]  # type: ignore[union-attr]
            assert "lives" in games.info_names()
        finally:
            games.close()


TINY: dict[str, Any] = {
    "num_envs": 2, "rollout_steps": 16, "num_minibatches": 2, "epochs": 1, "total_steps": 96, "hidden_sizes": (8,),
    "tensorboard": False,
}  # fmt: skip


def test_a_run_logs_the_means_and_names_missing_keys_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = proxrl.train("info_envs:Goals", log_info=("speed", "final_only", "sped", "place"), **TINY)
    lines = metrics(result.path)
    assert lines[0]["info/speed"] == (sum(3 * 10 * k + 6 for k in range(5)) + 51) / 16
    assert lines[0]["info_final/speed"] == np.mean([10 * k + 3 for k in range(5)])
    assert lines[0]["info/final_only"] == lines[0]["info_final/final_only"] == np.mean([100 + k for k in range(5)])
    assert not [name for line in lines for name in line if "sped" in name or "place" in name]
    output = capsys.readouterr().out
    numbers = "is_success, speed, terms/forward, final_only"
    assert f"--log-info sped place: no number of that name in info so far; its numbers are {numbers}\n" in output
    assert output.count("--log-info") == 1
    # Numbers that are given only at the end of an episode are not missing before one has ended.
    proxrl.train("info_envs:Goals", env_kwargs={"length": 40}, name="long", log_info=("final_only",), **TINY)
    assert "--log-info" not in capsys.readouterr().out
    proxrl.train("info_envs:Goals", env_kwargs={"length": 90}, name="longer", log_info=("final_only",), **TINY)
    output = capsys.readouterr().out
    assert output.index("step 96/96") > output.index("--log-info final_only: no number of that name") > 0


class Record:
    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.lines.append(dict(metrics))

    def close(self) -> None: ...


def test_an_info_without_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    proxrl.train("CartPole-v1", log_info=("nope",), **TINY | {"total_steps": 32})
    output = capsys.readouterr().out
    assert "--log-info nope: no number of that name in info so far; it has no numbers\n" in output
    assert "for 32 steps (1 iteration)\n" in output


def test_ranks_are_weighted_by_their_counts(tmp_path: Path) -> None:
    """In 16 steps the first rank ends 5 episodes of 3 steps, the second 3 of 5 steps."""
    config = Config(num_envs=2, rollout_steps=16, num_minibatches=2, total_steps=32, log_info=("speed",))

    def train(world: ThreadWorld) -> dict[str, float]:
        parts = assemble(config, InProcessEnvs([functools.partial(Goals, (3, 5)[world.rank])]), world, first_env=world.rank)
        record = Record()
        observers = Observers([record], Console(32, quiet=True), lambda _: Scores((0.0,), (1,)))
        ppo.train(parts, Session(config, world, trainee(parts), RunFolder(tmp_path), observers, None))  # type: ignore[arg-type]
        return record.lines[0]

    one, other = run_ranks(2, train)
    assert [one[name] == other[name] for name in ("info/speed", "info_final/speed", "charts/success_rate")] == [True] * 3
    assert one["info_final/speed"] == (sum(10 * k + 3 for k in range(5)) + sum(10 * k + 5 for k in range(3))) / 8
    first = sum(3 * 10 * k + 6 for k in range(5)) + 51
    second = sum(5 * 10 * k + 15 for k in range(3)) + 31
    assert one["info/speed"] == (first + second) / 32
    assert one["charts/success_rate"] == 3 / 8
