"""Ranks that torch.distributed connects: started by torchrun, or by srun with `--world torch`."""

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
from proxrl.world.api import contact, neighbours, own_seat

# What gloo, NCCL and the store behind them raise.
LOSSES = (RuntimeError, ValueError)
PORT_KEY = "proxrl/port"
SECONDS_TO_MEET = 300.0


class TorchWorld:
    """The process group of this program: its own, or the one that the program around it has opened."""

    kind = "torch"

    def __init__(self, rank: int, size: int, nccl: bool) -> None:
        if not dist.is_available():
            raise ProxRLError("this torch was built without torch.distributed; use --world mpi, started by mpirun")
        if not dist.is_initialized():
            with contact(*LOSSES):
                store = meeting_place(rank, size)
                dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", store=store, rank=rank, world_size=size)
            atexit.register(_leave)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_size, self.cores = neighbours(self.rank, self.gather(own_seat()))

    def sum_(self, tensor: Tensor) -> None:
        with contact(*LOSSES):
            dist.all_reduce(tensor)

    def broadcast_(self, tensor: Tensor) -> None:
        whole = tensor.detach().contiguous()  # with the channels last it is not
        with contact(*LOSSES):
            dist.broadcast(whole, src=0)
        with torch.no_grad():
            tensor.copy_(whole)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        with contact(*LOSSES):
            dist.all_gather_object(values, value)
        return values

    def abort(self, code: int) -> None:
        """The others find their connections closed, and torchrun ends or restarts them all."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def meeting_place(rank: int, size: int) -> Any:
    """A store that the ranks have to themselves.

    torchrun keeps its own when it restarts ranks, and in it what those before them wrote: the new ones would look for each other
    where the old ones were. So the first rank opens another one and leaves its port there. Where the others find a port that
    nobody listens to, it is an old one; all old ranks have ended before new ones begin.
    """
    from torch.distributed.rendezvous import rendezvous

    shared: Any = next(rendezvous("env://", rank, size))[0]
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return shared
    host, open_store = os.environ["MASTER_ADDR"], dist.TCPStore  # type: ignore[attr-defined]  # not in its __all__
    if rank == 0:
        own = open_store(host, 0, size, is_master=True, wait_for_workers=False)
        shared.set(PORT_KEY, str(own.port))
        return own
    deadline = time.monotonic() + SECONDS_TO_MEET
    while True:
        try:
            port = int(shared.get(PORT_KEY))
            return open_store(host, port, size, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
        except LOSSES:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
