"""A world of one rank, in which every operation is a no-op."""

from typing import Any

from torch import Tensor

from proxrl.world.api import this_location


class Solo:
    kind = "solo"
    rank = local_rank = 0
    size = local_size = 1

    def __init__(self) -> None:
        self.cores = len(this_location().processors)

    def sum_(self, tensor: Tensor) -> None: ...
    def broadcast_(self, tensor: Tensor) -> None: ...

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def abort(self, code: int) -> None: ...
