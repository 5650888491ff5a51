"""Who sums what with whom. Distribution enters the algorithm by these names and by no branch."""

import os
import platform
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from proxrl.errors import CollectiveError, ProxRLError, one_line

T = TypeVar("T")


class World(Protocol):
    """The ranks that train together. Operations ending in `_` change the tensor in place, to the same value on every rank."""

    kind: str  # as --world calls it
    rank: int
    size: int
    local_rank: int  # among the ranks on this host
    local_size: int  # how many there are
    cores: int  # this rank's share of the processors that it may use

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


class Seat(NamedTuple):
    """Where a rank sits: its host, and the processors that its launcher lets it use."""

    host: str
    processors: frozenset[int]


def own_seat() -> Seat:
    """Of this process."""
    if hasattr(os, "sched_getaffinity"):
        return Seat(platform.node(), frozenset(os.sched_getaffinity(0)))
    return Seat(platform.node(), frozenset(range(os.cpu_count() or 1)))


def neighbours(rank: int, seats: list[Seat]) -> tuple[int, int, int]:
    """This rank's number among those of its host, how many those are, and its share of the processors: those that it was bound to
    alone, or its part of those that others may use too.
    """
    hosts = [seat.host for seat in seats]
    share = len(seats[rank].processors) // seats.count(seats[rank])
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank]), max(1, share)


def on_all_ranks(world: World, make: Callable[[], T], debug: bool = False) -> T:
    """What `make` gives, once it has succeeded on every rank; otherwise all ranks raise the error of the first that failed."""
    if world.size == 1:
        return make()
    problem: Exception | None = None
    try:
        made = make()
    except Exception as error:
        problem = error
        if debug and world.rank > 0:
            traceback.print_exc()  # the others can't show where it came from
    texts = world.gather(problem and (str(problem) if isinstance(problem, ProxRLError) else one_line(problem)))
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if failed:
        where = "" if len(failed) == world.size else f"rank {failed[0]}: "
        raise CollectiveError(f"{where}{texts[failed[0]]}") from problem
    return made
