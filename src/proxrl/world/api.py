"""The contract for communication between ranks: the algorithm calls these methods and never branches on the number of ranks."""

import platform
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from proxrl.common.cores import processors
from proxrl.errors import CollectiveError, ProxRLError, describe

T = TypeVar("T")


class World(Protocol):
    """The ranks that train together. Methods ending in `_` change the tensor in place, to the same value on every rank."""

    kind: str  # the value of --world
    rank: int
    size: int  # number of ranks
    local_rank: int  # index among the ranks on this host
    local_size: int  # number of ranks on this host
    cores: int  # processors for this rank: those of its host, divided among the ranks that may use them

    def sum_(self, tensor: Tensor) -> None: ...
    def broadcast_(self, tensor: Tensor) -> None: ...  # from rank 0
    def gather(self, value: Any) -> list[Any]: ...  # the values of all ranks, in rank order, on every rank
    def abort(self, code: int) -> None: ...  # end all ranks, even those that are waiting for a message


class LostRankError(ProxRLError):
    """Another rank has ended, so this one can't continue."""

    def __init__(self, reason: object) -> None:
        cause = str(reason).splitlines() or [type(reason).__name__]
        super().__init__(f"lost contact with another rank, which has ended or can't be reached ({cause[0][:200]})")


@contextmanager
def lost_rank_errors(*exceptions: type[BaseException]) -> Iterator[None]:
    """Turn the exceptions that a library raises for failed messages into a `LostRankError`."""
    try:
        yield
    except exceptions as error:
        raise LostRankError(error) from error


class Location(NamedTuple):
    """The host of a rank, and the processors that its launcher lets it use."""

    host: str
    processors: frozenset[int]


def this_location() -> Location:
    """Return the location of this process."""
    return Location(platform.node(), processors())


def local_ranks(rank: int, locations: list[Location]) -> tuple[int, int, int]:
    """Return a rank's index among the ranks of its host, the number of ranks there, and its share of the processors.

    Processors that several ranks may use are divided among them; those that the launcher bound to one rank are all its own.
    """
    hosts = [location.host for location in locations]
    cores = len(locations[rank].processors) // locations.count(locations[rank])
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank]), max(1, cores)


def on_all_ranks(world: World, make: Callable[[], T], debug: bool = False) -> T:
    """Return `make()` if it succeeded on every rank; otherwise all ranks raise the error of the first rank that failed."""
    if world.size == 1:
        return make()
    problem: Exception | None = None
    try:
        made = make()
    except Exception as error:
        problem = error
        if debug and world.rank > 0:
            traceback.print_exc()  # other ranks only receive the text
    texts = world.gather(problem and describe(problem))
    failed = [rank for rank, text in enumerate(texts) if text is not None]
    if failed:
        where = "" if len(failed) == world.size else f"rank {failed[0]}: "
        raise CollectiveError(f"{where}{texts[failed[0]]}") from problem
    return made
