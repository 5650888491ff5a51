"""Who sums what with whom. Distribution enters the algorithm by these names and by no branch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor

from proxrl.errors import AgreedError, ProxRLError
from proxrl.imports import one_line

T = TypeVar("T")


class World(Protocol):
    """The ranks that train together. Operations ending in `_` change the tensor in place, to the same value on every rank."""

    kind: str  # as --world calls it
    rank: int
    size: int
    local_rank: int  # among the ranks on this host
    local_size: int  # how many there are

    def sum_(self, tensor: Tensor) -> None: ...
    def broadcast_(self, tensor: Tensor) -> None: ...  # from rank 0
    def gather(self, value: Any) -> list[Any]: ...  # every rank's value, in order of rank, on every rank
    def abort(self, code: int) -> None: ...  # end all ranks, whatever they wait for


class LostRankError(ProxRLError):
    """Another rank has gone, so this one can't go on."""

    def __init__(self, reason: object) -> None:
        cause = str(reason).splitlines() or [type(reason).__name__]
        super().__init__(f"lost contact with another rank, which has ended or can't be reached ({cause[0][:200]})")


@contextmanager
def contact(*losses: type[BaseException]) -> Iterator[None]:
    """What a library raises when a message can't be exchanged, as one line."""
    try:
        yield
    except losses as error:
        raise LostRankError(error) from error


def neighbours(rank: int, hosts: list[str]) -> tuple[int, int]:
    """This rank's number among those of its host, and how many those are."""
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def agreed(world: World, make: Callable[[], T]) -> T:
    """What `make` gives, once it has succeeded on every rank; otherwise all ranks raise the error of the first that failed."""
    if world.size == 1:
        return make()
    problem: Exception | None = None
    try:
        made = make()
    except Exception as error:
        problem = error
    texts = world.gather(problem and (str(problem) if isinstance(problem, ProxRLError) else one_line(problem)))
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if failed:
        where = "" if len(failed) == world.size else f"rank {failed[0]}: "
        raise AgreedError(f"{where}{texts[failed[0]]}") from problem
    return made
