"""Detection of the launcher, and what follows from a rank's position among others: environments, threads and GPUs."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proxrl.build import build_world, device_index, rank_envs, refuse_shared_gpus
from proxrl.config import Config
from proxrl.config.parse import toml_value
from proxrl.engine import threads
from proxrl.errors import ProxRLError
from proxrl.launch import RunOptions, agree_on_settings
from proxrl.world.api import Location, local_ranks
from proxrl.world.launcher import Launch, first_host, launched, set_rendezvous_from_slurm
from proxrl.world.solo import Solo


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch("", "solo", 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, Launch("torchrun", "torch", 3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Launch("mpirun", "mpi", 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("mpiexec", "mpi", 1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, Launch("srun", "mpi", 5, 8)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("srun", "mpi", 1, 2)),
        # Launchers inside a Slurm job.
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "3", "PMI_SIZE": "8"}, Launch("mpiexec", "mpi", 3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "RANK": "3", "WORLD_SIZE": "8"}, Launch("torchrun", "torch", 3, 8)),
        # A batch script, or a single rank, trains alone.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launch("", "solo", 0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Launch("", "solo", 0, 1)),
        ({"WORLD_SIZE": "many", "RANK": "?"}, Launch("", "solo", 0, 1)),
    ],
)
def test_launchers_are_detected_by_their_variables(variables: dict[str, str], expected: Launch) -> None:
    assert launched(variables) == expected


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node7", "node7"),
        ("a,b", "a"),
        ("node[07-09,12],other", "node07"),
        ("rack1-node[1,3]", "rack1-node1"),
        ("x.org,y", "x.org"),
    ],
)
def test_first_host_of_a_slurm_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_slurm_ranks_connect_to_the_first_host_at_a_port_of_their_step() -> None:
    steps = [{"SLURM_STEP_NODELIST": "n[3-4]", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": step} for step in ("0", "1")]
    for step in steps:
        set_rendezvous_from_slurm(step)
    assert [step["MASTER_ADDR"] for step in steps] == ["n3", "n3"]
    assert steps[0]["MASTER_PORT"] != steps[1]["MASTER_PORT"]
    user_defined = {"MASTER_ADDR": "here", "MASTER_PORT": "5"}
    set_rendezvous_from_slurm(user_defined)
    assert user_defined == {"MASTER_ADDR": "here", "MASTER_PORT": "5"}


@pytest.mark.parametrize(
    ("variables", "world", "advice"),
    [
        ({}, "mpi", "use mpirun -n 2"),
        ({}, "torch", "use torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "mpi", "torchrun started this"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "torch", "mpirun started this"),
    ],
)
def test_a_world_that_does_not_match_the_launcher_is_an_error(
    variables: dict[str, str], world: Any, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProxRLError, match=advice):
        build_world(Config(world=world))


class FakeRank(Solo):
    """One rank of several, without communication."""

    def __init__(self, rank: int, size: int, local_rank: int = 0, local_size: int = 1) -> None:
        super().__init__()
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size


def test_environments_are_distributed_in_order() -> None:
    assert [rank_envs(8, FakeRank(rank, 2)) for rank in range(2)] == [range(4), range(4, 8)]
    with pytest.raises(ProxRLError, match="use 3, or --envs-per-rank"):
        rank_envs(2, FakeRank(0, 3))


def test_ranks_of_a_host_are_counted_and_divide_its_processors() -> None:
    eight, four = frozenset(range(8)), frozenset(range(4))
    locations = [Location("a", eight), Location("a", eight), Location("b", four), Location("a", eight)]
    assert [local_ranks(rank, locations) for rank in range(4)] == [(0, 3, 2), (1, 3, 2), (0, 1, 4), (2, 3, 2)]
    # mpirun bound each rank to its own processors.
    bound = [Location("a", frozenset({0, 1})), Location("a", frozenset({2, 3}))]
    assert [local_ranks(rank, bound) for rank in range(2)] == [(0, 2, 2), (1, 2, 2)]
    # More ranks than processors.
    assert local_ranks(0, [Location("a", frozenset({0}))] * 3) == (0, 3, 1)


def test_a_rank_uses_its_share_of_the_cores_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "is_small", lambda *_: False)
    before = torch.get_num_threads()
    rank = FakeRank(0, 2, 0, 2)
    rank.cores = 3
    policy: Any = SimpleNamespace(work_per_row=1e18)
    with threads.arithmetic(Config(), policy, rank):  # type: ignore[arg-type]
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("local_rank", "local_size", "ids", "visible", "expected"),
    [
        (0, 1, None, 4, None),  # torch chooses
        (2, 4, None, 4, 2),
        (1, 2, None, 1, None),  # Slurm makes only its own GPU visible to each rank
        (3, 4, (0, 0, 1, 1), 2, 1),
        (0, 1, (3,), 4, 3),
    ],
)
def test_gpus_by_local_rank(local_rank: int, local_size: int, ids: Any, visible: int, expected: int | None) -> None:
    assert device_index(FakeRank(local_rank, local_size, local_rank, local_size), ids, visible) == expected


def test_device_ids_must_name_a_gpu_for_every_rank_of_a_host() -> None:
    with pytest.raises(ProxRLError, match="names 2 GPUs for 4 ranks"):
        device_index(FakeRank(1, 4, 1, 4), (0, 1), 2)


class FakeRanks(FakeRank):
    """Rank 0 of several, with known values of the others for `gather`."""

    kind = "torch"

    def __init__(self, gathered: list[Any]) -> None:
        super().__init__(0, len(gathered))
        self.gathered = gathered

    def gather(self, value: Any) -> list[Any]:
        return self.gathered


def test_several_ranks_on_one_gpu_are_an_error_with_nccl() -> None:
    gpu = torch.device("cuda", 0)
    same, apart = FakeRanks([("a", "cuda:0", None)] * 2), FakeRanks([("a", "cuda:0", None), ("b", "cuda:0", None)])
    with pytest.raises(ProxRLError, match=r"several ranks would use cuda:0 of a.*--device-ids 0 0"):
        refuse_shared_gpus(same, gpu, nccl=True)
    refuse_shared_gpus(same, gpu, nccl=False)
    refuse_shared_gpus(apart, gpu, nccl=True)
    refuse_shared_gpus(FakeRanks([("a", "cuda", "0"), ("a", "cuda", "1")]), gpu, nccl=True)


def test_ranks_must_have_the_same_settings(tmp_path: Path) -> None:
    names = ("vector", "device", "device_ids", "threads")
    plain = {spec.name: toml_value(getattr(Config(), spec.name)) for spec in fields(Config) if spec.name not in names}

    def agreed(*others: Any, clobber: bool = False) -> Any:
        ranks = FakeRanks([(plain, "inprocess", 0, False), *others])
        config, options = agree_on_settings(ranks, Config(), RunOptions(tmp_path, clobber=clobber))
        return config, options.clobber

    # The pool that rank 0 chose is used by all.
    config, clobber = agreed((plain, "envpool", 0, False), clobber=True)
    assert (config.vector, clobber) == ("inprocess", True)
    with pytest.raises(ProxRLError, match="--seed is 7 on rank 1, but 1 on rank 0"):
        agreed(({**plain, "seed": "7"}, "inprocess", 0, False))
    # A checkpoint that only another host sees must not be ignored.
    with pytest.raises(ProxRLError, match="rank 1 finds a checkpoint"):
        agreed((plain, "inprocess", 0, True))
    # A job that torchrun restarted, on any host, does not delete the run again.
    assert not agreed((plain, "inprocess", 1, False), clobber=True)[1]
