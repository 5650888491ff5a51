"""Ranks that communicate by MPI: started by mpirun, mpiexec or srun."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxrl.errors import CollectiveError
from proxrl.world.api import local_ranks, lost_rank_errors, this_location


class MpiWorld:
    """All ranks of `MPI.COMM_WORLD`. A duplicated communicator keeps messages apart from those of the surrounding program."""

    kind = "mpi"

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py found no MPI library
            reason = str(error).splitlines()[0]
            raise CollectiveError(f"several MPI ranks need mpi4py ({reason}): pip install 'proxrl[mpi]'") from error
        self._communicator, self._in_place, self._error = MPI.COMM_WORLD.Dup(), MPI.IN_PLACE, MPI.Exception
        self.rank, self.size = self._communicator.Get_rank(), self._communicator.Get_size()
        self.local_rank, self.local_size, self.cores = local_ranks(self.rank, self.gather(this_location()))

    def sum_(self, tensor: Tensor) -> None:
        array = _host_array(tensor)
        with lost_rank_errors(self._error):
            self._communicator.Allreduce(self._in_place, array)
        _put_back(tensor, array)

    def broadcast_(self, tensor: Tensor) -> None:
        array = _host_array(tensor)
        with lost_rank_errors(self._error):
            self._communicator.Bcast(array)
        _put_back(tensor, array)

    def gather(self, value: Any) -> list[Any]:
        with lost_rank_errors(self._error):
            return list(self._communicator.allgather(value))

    def abort(self, code: int) -> None:
        self._communicator.Abort(code)


def _host_array(tensor: Tensor) -> np.ndarray:
    """Return the tensor as a contiguous array in host memory, without a copy if possible. Not every MPI can read GPU memory."""
    return tensor.detach().cpu().contiguous().numpy()


def _put_back(tensor: Tensor, array: np.ndarray) -> None:
    if tensor.data_ptr() != array.ctypes.data:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(array))
