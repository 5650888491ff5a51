"""Which launcher started this process, as which rank of how many: read from the environment variables that it sets."""

import os
import re
import time
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from proxrl.errors import CollectiveError, ProxRLError

# The variables for rank and size, and the kind of world, of each launcher. torchrun or mpirun may run inside a Slurm job, which
# sets its variables too, so srun comes last.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "torch"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpi"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "mpi"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "mpi"),
}
# Ports for the rendezvous of ranks started by Slurm, in a range without well-known services.
FIRST_PORT, PORTS = 20_000, 10_000
# How long the other ranks wait for rank 0 to report an error.
REPORT_SECONDS = 5.0


class Launch(NamedTuple):
    """How this process was started."""

    launcher: str
    kind: str
    rank: int
    size: int


def launched(variables: Mapping[str, str] = os.environ) -> Launch:
    """Return how this process was started. Without a launcher, or as its only rank, it is the one rank of a solo world."""
    for launcher, (rank_name, size_name, kind) in LAUNCHERS.items():
        rank, size = variables.get(rank_name, ""), variables.get(size_name, "")
        if rank.isdigit() and size.isdigit() and int(size) > 1:
            slurm = (variables.get("SLURM_PROCID"), variables.get("SLURM_STEP_NUM_TASKS")) == (rank, size)
            # With PMI-2 srun sets the variables of mpiexec too.
            return Launch("srun" if slurm and launcher == "mpiexec" else launcher, kind, int(rank), int(size))
    return Launch("", "solo", 0, 1)


def should_report(error: ProxRLError) -> bool:
    """Return whether this rank should print the error.

    Ranks of one launcher have the same arguments and mostly fail alike, so rank 0 reports it. The others wait for that, since
    launchers end all ranks as soon as one has ended. A rank that is still running after the wait has an error that only it
    raised, such as a package missing on its host (or was started by srun, which ends no other rank).
    """
    if launched().rank == 0:
        return True
    time.sleep(REPORT_SECONDS)
    return not isinstance(error, CollectiveError)


def set_rendezvous_from_slurm(variables: MutableMapping[str, str]) -> None:
    """Set the address of torch's rendezvous, as torchrun would: the first host of the step, a port derived from the job id."""
    hosts = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_NODELIST", "localhost"))
    variables.setdefault("MASTER_ADDR", first_host(hosts))
    step = int(variables.get("SLURM_JOB_ID", "0")) * 16 + int(variables.get("SLURM_STEP_ID", "0"))
    variables.setdefault("MASTER_PORT", str(FIRST_PORT + step % PORTS))


def first_host(hosts: str) -> str:
    """Return the first host of a Slurm host list: `node07` for `node[07-09,12],other`."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", hosts)
    return hosts if match is None else match[1] + (match[2] or "")
