"""Splitting many rows into chunks, so that what is computed from them fits into memory."""

from collections.abc import Iterator

# The most numbers that one chunk may hold.
CHUNK_SIZE = 2**24


def chunk_slices(count: int, numbers: int) -> Iterator[slice]:
    """Yield consecutive slices of `count` rows; each holds at most CHUNK_SIZE numbers, of which a row has `numbers`."""
    size = max(1, CHUNK_SIZE // max(1, numbers))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
