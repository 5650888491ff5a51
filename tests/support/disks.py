"""Small and read-only filesystems and limited files, for tests of what happens when writing fails."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a temporary filesystem, such as one with the options `size=64k` or `ro`; skip the test if that is not allowed."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        mount = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this system has no mount command")
    if mount.returncode:
        pytest.skip(f"can't mount a filesystem here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


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
