"""A full disk, simulated by a limit on the size of files."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Make this process fail to write files beyond this size in bytes."""
    resource = pytest.importorskip("resource", reason="file size limits are POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
