"""Worker processes: the same results as in this process, and no process left behind after any failure."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from commands import SUPPORT
from proxrl.common.tree import tree_leaves
from proxrl.envs.gymnasium import InProcessEnvs, make_env
from proxrl.envs.workers import WorkerEnvs
from proxrl.errors import ProxRLError
from sample_envs import Counter, Failing, Nested, StoresAction


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def assert_equal(ours: Any, theirs: Any) -> None:
    for one, other in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("maker", [partial(make_env, "CartPole-v1"), partial(Nested, 7, 9), partial(Counter, 0, 4)])
def test_results_are_exactly_those_of_the_loop_in_this_process(maker: Callable[[], gymnasium.Env]) -> None:
    makers = [maker] * 5
    loop, workers = InProcessEnvs(makers, first_env=3), WorkerEnvs(makers, first_env=3, num_workers=2)
    try:
        assert workers.observation_space == loop.observation_space
        assert workers.action_space == loop.action_space
        assert_equal(loop.reset(11), workers.reset(11))
        loop.action_space.seed(0)
        finished = 0
        for _ in range(500):
            action = np.stack([loop.action_space.sample() for _ in range(5)])
            ours, theirs = loop.step(action), workers.step(action)
            assert_equal(ours, theirs)
            assert ours.episodes == theirs.episodes
            finished += len(ours.episodes)
        assert finished > 20
        np.testing.assert_array_equal(loop.episode_counts, workers.episode_counts)
        counts = loop.episode_counts.tolist()
        assert_equal(loop.reset(11, counts), workers.reset(11, counts))
    finally:
        workers.close()


def start(*makers: Callable[[], gymnasium.Env], timeout: float = 30.0) -> WorkerEnvs:
    workers = WorkerEnvs(makers, num_workers=2, timeout=timeout)
    workers.reset(0)
    workers.step(np.zeros(len(makers), np.int64))
    workers.step(np.zeros(len(makers), np.int64))
    return workers


def test_an_error_names_its_environment_and_has_its_traceback() -> None:
    workers = start(Counter, Counter, Counter, partial(Failing, "raise"))
    with pytest.raises(ProxRLError, match="environment 3 failed in step: ValueError: the wheel came off") as caught:
        workers.step(np.zeros(4, np.int64))
    assert "\n" not in str(caught.value)
    assert "worker 1 (environments 2-3)" in caught.value.__notes__[0]
    assert "sample_envs.py" in caught.value.__notes__[0]
    with pytest.raises(ProxRLError, match="closed"):
        workers.step(np.zeros(4, np.int64))


def test_an_environment_that_exits_is_an_error() -> None:
    workers = start(Counter, partial(Failing, "exit"))
    with pytest.raises(ProxRLError, match="SystemExit"):
        workers.step(np.zeros(2, np.int64))


def test_a_constructor_that_fails_is_an_error() -> None:
    with pytest.raises(ProxRLError, match="can't make CartPole-v1: TypeError"):
        WorkerEnvs([partial(make_env, "CartPole-v1"), partial(make_env, "CartPole-v1", {"wheels": 3})], num_workers=2)


def test_a_killed_worker_is_noticed_at_once() -> None:
    workers = start(Counter, Counter, Counter)
    children = sorted(multiprocessing.active_children(), key=lambda child: child.name)
    children[1].kill()
    children[1].join()
    start_time = time.monotonic()
    with pytest.raises(ProxRLError, match=r"worker 1 \(environments 1-2\) died \(killed by signal 9\)"):
        workers.step(np.zeros(3, np.int64))
    assert time.monotonic() - start_time < 10


def test_a_hanging_environment_is_noticed_in_time() -> None:
    workers = start(Counter, partial(Failing, "hang"), timeout=1.0)
    start_time = time.monotonic()
    with pytest.raises(ProxRLError, match=r"worker 1 \(environment 1\) did not reply within 1 seconds") as caught:
        workers.step(np.zeros(2, np.int64))
    assert time.monotonic() - start_time < 10
    if hasattr(signal, "SIGUSR1"):
        assert "sample_envs.py" in caught.value.__notes__[0], "the note should show where it hangs"


def test_close_may_be_called_twice_and_arrays_stay_readable() -> None:
    workers = start(Counter, Counter)
    obs = workers.step(np.zeros(2, np.int64)).obs
    workers.close()
    workers.close()
    assert obs[:, 1].tolist() == [3, 3]


ORPHANS = """
import os, signal, sys, multiprocessing
from functools import partial
import numpy as np
from proxrl.envs.workers import WorkerEnvs
from sample_envs import Counter, Failing

if __name__ == "__main__":
    workers = WorkerEnvs([Counter, partial(Failing, "hang")], num_workers=2)
    workers.reset(0)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGINT)  # workers ignore Ctrl-C
    for _ in range(2):
        workers.step(np.zeros(2, np.int64))
    signal.alarm(1)  # ends this process without cleanup while a worker hangs
    workers.step(np.zeros(2, np.int64))
"""


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads processes from /proc")
def test_workers_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == -signal.SIGALRM, run.stderr
    pids = [int(word) for word in run.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in pids)
    assert "leaked" not in run.stderr


def test_a_script_without_main_guard_gets_a_one_line_error(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from proxrl.envs.workers import WorkerEnvs\nfrom sample_envs import Counter\nWorkerEnvs([Counter], num_workers=1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "worker 0 (environment 0) ended while starting: keep the main script's work under" in run.stderr


def test_an_environment_may_store_its_action_and_gets_it_with_its_dtype() -> None:
    rewards = []
    for pool in (InProcessEnvs([StoresAction] * 2), WorkerEnvs([StoresAction] * 2, num_workers=2)):
        pool.reset(0)
        rewards.append([pool.step(np.full((2, 2), sign * 0.1)).reward.tolist() for sign in (1, -1, 1)])
        pool.close()
    assert rewards[0] == rewards[1]
    assert rewards[0][1] == pytest.approx([-0.4, -0.4])
