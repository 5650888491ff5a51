"""Large blocks of memory that are freed and allocated again."""

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

faults_by_default = faults()
proxrl.engine.allocator.keep_freed_memory()
faults()  # the first block is new memory
print(faults_by_default, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_blocks_are_not_cleared_by_the_system_each_time() -> None:
    """64 MiB, 10 times: by default one page fault per page (or huge page), and hardly any with `keep_freed_memory`."""
    output = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True).stdout
    by_default, with_kept_memory = map(int, output.split())
    assert by_default >= 10 * 32
    assert with_kept_memory < by_default / 10
