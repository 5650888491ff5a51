"""Worker processes: reuse, messages, requests to stop, and what happens when one of the two sides dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import job_tasks
from commands import SUPPORT, is_alive, wait_for
from proxrl.jobs.pool import Lost, Pool, Worker


def messages(pool: Pool[str], count: int) -> list[tuple[Worker[str], str, Any]]:
    received: list[tuple[Worker[str], str, Any]] = []
    while len(received) < count:
        received += pool.messages(60)
    return received


@pytest.fixture
def pool(tmp_path: Path) -> Any:
    pool: Pool[str] = Pool(job_tasks.carry_out, lambda number, job: tmp_path / f"{job}-{number}.log", stop_seconds=None)
    yield pool
    pool.kill()


def test_idle_workers_are_reused_retired_ones_are_not_and_lost_ones_are_found(pool: Pool[str], tmp_path: Path) -> None:
    pids = []
    for job in ("first", "second"):
        pool.submit(job, "work")
        (worker, name, (_, pid)), (_, _, last) = messages(pool, 2)
        assert (name, last, pool.jobs) == (job, "done", [job])
        worker.job = None
        pids.append(pid)
    assert pids[0] == pids[1]
    assert (tmp_path / "first-0.log").read_text() == "task work\ntask work\n"
    pool.retire(worker)
    pool.submit("third", "die")
    (_, _, (_, pid)), (_, name, lost) = messages(pool, 2)
    assert pid != pids[0]
    assert (name, lost, pool.jobs) == ("third", Lost("exit code 9"), [])
    wait_for(lambda: not is_alive(pids[0]), 20)


def test_retired_workers_leave_no_open_files(pool: Pool[str]) -> None:
    retired = []
    for job in ("first", "second"):
        pool.submit(job, "work")
        (worker, _, _), _ = messages(pool, 2)
        worker.job = None
        pool.retire(worker)
        retired.append(worker)
        worker.process.join(60)
    pool.submit("third", "work")
    (worker, _, _), _ = messages(pool, 2)
    worker.job = None
    pool.retire(worker)
    assert [old.control.closed for old in retired] == [True, True]


def test_a_request_to_stop_ends_workers_after_their_task_and_closing_waits_for_it(pool: Pool[str]) -> None:
    pool.submit("one", "wait")
    pool.submit("two", "wait")
    pids = [message[1] for _, _, message in messages(pool, 2)]
    pool.request_stop()
    assert [message for _, _, message in messages(pool, 2)] == ["stopped"] * 2
    pool.close()
    assert not any(map(is_alive, pids))
    pool.submit("three", "hang")
    ((_, _, (_, pid)),) = messages(pool, 1)
    began = time.monotonic()
    pool.kill()
    assert not is_alive(pid)
    assert time.monotonic() - began < 10


PARENT = """
from pathlib import Path
from proxrl.jobs.pool import Pool
import job_tasks

if __name__ == "__main__":
    pool = Pool(job_tasks.carry_out, lambda number, job: Path(f"{number}.log"), stop_seconds=None)
    for job in ("wait", "hang"):
        pool.submit(job, job)
    pids = []
    while len(pids) < 2:
        pids += [message[1] for _, _, message in pool.messages(60)]
    pool.request_stop()  # one does not react to it
    print(*pids, flush=True)
    while True:
        for worker, _, message in pool.messages(60):
            worker.job = None
"""


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    assert is_alive(pids[1])
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(is_alive, pids)), 20)
