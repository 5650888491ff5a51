"""Which launcher started this process, and as which of how many ranks: read from the variables that it sets."""

import os
import re
import time
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from proxrl.errors import CollectiveError, ProxRLError

# Variables of rank and size, and the kind of world that the launcher is for. One launcher may run inside another: torchrun or
# mpirun in a job of Slurm, which sets its own variables too, so srun comes last.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "torch"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpi"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "mpi"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "mpi"),
}
# Where ranks that Slurm started meet, if nothing else is said: ports that no service is known for.
FIRST_PORT, PORTS = 20_000, 10_000


SECONDS_TO_TELL = 5.0


class Launch(NamedTuple):
    """As whom this process was started."""

    launcher: str
    kind: str
    rank: int
    size: int


def launched(variables: Mapping[str, str] = os.environ) -> Launch:
    """By whom; without a launcher, or as its only rank, as the one rank of a solo world."""
    for launcher, (rank_name, size_name, kind) in LAUNCHERS.items():
        rank, size = variables.get(rank_name, ""), variables.get(size_name, "")
        if rank.isdigit() and size.isdigit() and int(size) > 1:
            slurm = (variables.get("SLURM_PROCID"), variables.get("SLURM_STEP_NUM_TASKS")) == (rank, size)
            # With PMI-2 srun sets the variables of mpiexec too.
            return Launch("srun" if slurm and launcher == "mpiexec" else launcher, kind, int(rank), int(size))
    return Launch("", "solo", 0, 1)


def is_for_this_rank_to_tell(error: ProxRLError) -> bool:
    """Ranks that a launcher started together read the same words and mostly find the same wrong: the first tells it.

    The others give it time to, since launchers end all ranks as soon as one has ended. What is left then is an error of this
    rank's own, such as a package that only its host lacks (or srun, which ends nobody).
    """
    if launched().rank == 0:
        return True
    time.sleep(SECONDS_TO_TELL)
    return not isinstance(error, CollectiveError)


def meet_by_slurm(variables: MutableMapping[str, str]) -> None:
    """Set where torch's ranks meet, as torchrun would: on the first host of the step, at a port that follows from the job."""
    hosts = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_NODELIST", "localhost"))
    variables.setdefault("MASTER_ADDR", first_host(hosts))
    step = int(variables.get("SLURM_JOB_ID", "0")) * 16 + int(variables.get("SLURM_STEP_ID", "0"))
    variables.setdefault("MASTER_PORT", str(FIRST_PORT + step % PORTS))


def first_host(hosts: str) -> str:
    """Of a list as Slurm writes it: `node[07-09,12],other` begins with node07."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", hosts)
    return hosts if match is None else match[1] + (match[2] or "")
