"""Threads that share the rows of a minibatch, each with its own part of the arithmetic.

The alternative is to let torch split every single operation among its own threads. Those wait for each other after each
operation, hundreds of times per minibatch, and on cores with other work each wait takes a time slice: two runs of Pong on two
cores were each six times as slow as one alone. Threads that compute a whole part of a minibatch wait for each other twice: after
the forward pass, and after the backward pass.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

# To act on fewer rows, a second thread takes as long to wake up as it saves.
LEAST_ROWS = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


class Shards:
    """`count` threads, of which the caller's is one. With one, everything is done by the caller itself."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        # Threads are started when they are first needed.
        self._pool = ThreadPoolExecutor(count - 1, "proxrl-shard", lambda: torch.set_num_threads(1)) if count > 1 else None

    def rows(self, count: int) -> list[slice]:
        """Split `count` rows into consecutive slices, one for each thread, of at least LEAST_ROWS rows."""
        parts = max(1, min(self.count, count // LEAST_ROWS))
        return [slice(count * k // parts, count * (k + 1) // parts) for k in range(parts)]

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results in the order of the items. The first of every `count` items is the caller's."""
        if self._pool is None:
            return [function(item) for item in items]
        items = list(items)
        others = {k: self._pool.submit(function, item) for k, item in enumerate(items) if k % self.count}
        try:
            ours = {k: function(item) for k, item in enumerate(items) if k % self.count == 0}
        finally:
            wait(others.values())  # also after an error: nothing may go on computing while the caller handles it
        return [others[k].result() if k % self.count else ours[k] for k in range(len(items))]
