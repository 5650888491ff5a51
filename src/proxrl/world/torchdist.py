"""Ranks that torch.distributed connects: started by torchrun, or by srun with `--world torch`."""

import atexit
import os
import platform
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from proxrl.errors import ProxRLError
from proxrl.world.api import contact, neighbours

# What gloo, NCCL and the store behind them raise.
LOSSES = (RuntimeError, ValueError)


class TorchWorld:
    """The process group of this program: its own, or the one that the program around it has opened."""

    kind = "torch"

    def __init__(self, rank: int, size: int, nccl: bool) -> None:
        if not dist.is_available():
            raise ProxRLError("this torch was built without torch.distributed; use --world mpi, started by mpirun")
        if not dist.is_initialized():
            from torch.distributed.rendezvous import rendezvous

            with contact(*LOSSES):
                store, rank, size = next(rendezvous("env://", rank, size))
                # torchrun keeps the store when it restarts its ranks: without a place of their own in it they would look for
                # each other where those before them were.
                number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                attempt = dist.PrefixStore(f"attempt{number}", store)  # type: ignore[attr-defined]  # not in its __all__
                dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", store=attempt, rank=rank, world_size=size)
            atexit.register(_leave)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_size = neighbours(self.rank, self.gather(platform.node()))

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


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
