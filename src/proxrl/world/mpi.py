"""Ranks that MPI connects: started by mpirun, mpiexec or srun."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxrl.errors import CollectiveError
from proxrl.world.api import contact, neighbours, own_seat


class MpiWorld:
    """Messages go through a communicator of its own, so that they meet none of the program around it."""

    kind = "mpi"

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # the latter where there is no MPI library to load
            reason = str(error).splitlines()[0]
            raise CollectiveError(f"several MPI ranks need mpi4py ({reason}): pip install 'proxrl[mpi]'") from error
        self._communicator, self._in_place, self._error = MPI.COMM_WORLD.Dup(), MPI.IN_PLACE, MPI.Exception
        self.rank, self.size = self._communicator.Get_rank(), self._communicator.Get_size()
        self.local_rank, self.local_size, self.cores = neighbours(self.rank, self.gather(own_seat()))

    def sum_(self, tensor: Tensor) -> None:
        array = _host_array(tensor)
        with contact(self._error):
            self._communicator.Allreduce(self._in_place, array)
        _put_back(tensor, array)

    def broadcast_(self, tensor: Tensor) -> None:
        array = _host_array(tensor)
        with contact(self._error):
            self._communicator.Bcast(array)
        _put_back(tensor, array)

    def gather(self, value: Any) -> list[Any]:
        with contact(self._error):
            return list(self._communicator.allgather(value))

    def abort(self, code: int) -> None:
        self._communicator.Abort(code)


def _host_array(tensor: Tensor) -> np.ndarray:
    """Its numbers in one piece of this host's memory: itself where it is that already. Not every MPI reads a GPU's."""
    return tensor.detach().cpu().contiguous().numpy()


def _put_back(tensor: Tensor, array: np.ndarray) -> None:
    if tensor.data_ptr() != array.ctypes.data:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(array))
