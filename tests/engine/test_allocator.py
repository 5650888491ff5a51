"""Large blocks that are freed and asked for again."""

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
import numpy
import proxrl.engine.allocator

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        numpy.empty(2**26, numpy.uint8)[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
proxrl.engine.allocator.keep_freed_memory()
faults()  # the first block has to be fetched
print(given_back, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_blocks_are_not_cleared_by_the_system_each_time() -> None:
    """Of 64 MiB, 10 times: as many page faults as pages before (or as huge pages), next to none after."""
    output = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True).stdout
    given_back, kept = map(int, output.split())
    assert given_back >= 10 * 32
    assert kept < given_back / 10
