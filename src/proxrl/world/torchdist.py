"""Ranks that communicate by torch.distributed: started by torchrun, or by srun with `--world torch`."""

import atexit
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from proxrl.errors import ProxRLError
from proxrl.world.api import local_ranks, lost_rank_errors, this_location

# What gloo, NCCL and their key-value store raise when a connection fails.
CONNECTION_ERRORS = (RuntimeError, ValueError)
PORT_KEY = "proxrl/port"
RENDEZVOUS_SECONDS = 300.0


class TorchWorld:
    """All ranks of the default process group, which is created here unless the surrounding program already has."""

    kind = "torch"

    def __init__(self, rank: int, size: int, nccl: bool) -> None:
        if not dist.is_available():
            raise ProxRLError("this torch was built without torch.distributed; use --world mpi, started by mpirun")
        if not dist.is_initialized():
            with lost_rank_errors(*CONNECTION_ERRORS):
                store = rendezvous_store(rank, size)
                dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", store=store, rank=rank, world_size=size)
            atexit.register(_destroy_process_group)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_size, self.cores = local_ranks(self.rank, self.gather(this_location()))

    def sum_(self, tensor: Tensor) -> None:
        with lost_rank_errors(*CONNECTION_ERRORS):
            dist.all_reduce(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        whole = tensor.detach().contiguous()  # channels-last tensors are not
        with lost_rank_errors(*CONNECTION_ERRORS):
            dist.broadcast(whole, src=0)
        with torch.no_grad():
            tensor.copy_(whole)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        with lost_rank_errors(*CONNECTION_ERRORS):
            dist.all_gather_object(values, value)
        return values

    def abort(self, code: int) -> None:
        """End this process: the other ranks find their connections closed, and torchrun ends or restarts all of them."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def rendezvous_store(rank: int, size: int) -> Any:
    """Return a key-value store that only the ranks of this start use.

    When torchrun restarts ranks it keeps its own store, with the addresses that the previous ranks wrote there, and the new ranks
    would try to connect to those. So rank 0 opens another store and publishes its port in torchrun's. A port that nobody listens
    to was published before the restart (all old ranks have ended before new ones start), so the other ranks try again.
    """
    from torch.distributed.rendezvous import rendezvous

    shared: Any = next(rendezvous("env://", rank, size))[0]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return shared
    host, open_store = os.environ["MASTER_ADDR"], dist.TCPStore  # type: ignore[attr-defined]  # not in its __all__
    if rank == 0:
        store = open_store(host, 0, size, is_master=True, wait_for_workers=False)
        shared.set(PORT_KEY, str(store.port))
        return store
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            port = int(shared.get(PORT_KEY))
            return open_store(host, port, size, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
        except CONNECTION_ERRORS:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
