"""A world of one rank, in which every operation is a no-op."""

from typing import Any

from torch import Tensor

from proxrl.common.cores import available_cores


class Solo:
    kind = "solo"
    rank = local_rank = 0
    size = local_size = 1

    def __init__(self, cores: int | None = None) -> None:
        self.cores = cores or available_cores()

    def sum_(self, tensor: Tensor) -> None: ...
    def broadcast_(self, tensor: Tensor) -> None: ...

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def abort(self, code: int) -> None: ...
