"""Who averages what with whom. Distribution enters the algorithm by these names and by no branch."""

from typing import Any, Protocol

from torch import Tensor


class World(Protocol):
    """The ranks that train together. Operations ending in `_` change the tensor in place, to the same value on every rank."""

    rank: int
    size: int

    def sum_(self, tensor: Tensor) -> None: ...
    def average_(self, tensor: Tensor) -> None: ...
    def broadcast_(self, tensor: Tensor) -> None: ...  # from rank 0
    def gather(self, value: Any) -> list[Any]: ...  # every rank's value, in order of rank, on every rank
    def barrier(self) -> None: ...
