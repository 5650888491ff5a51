"""How many processor cores this process may use."""

import os


def processors() -> frozenset[int]:
    """Return the processors that this process may use: a launcher, a container or `taskset` may have set fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def available_cores() -> int:
    return len(processors())
