"""What becomes of memory that is freed."""

import ctypes
import platform

# Parameters of mallopt, as in malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_KEPT = 2**30  # bytes


def keep_freed_memory() -> None:
    """Have glibc keep large blocks that are freed, for the rest of the process.

    By default it gives them back at once, and the system clears every page anew for the next one like it: a minibatch of images
    frees and asks for some hundred megabytes, and would spend a tenth of its time so. The most that is ever in use stays the
    same. Other C libraries have their own ways and are left alone.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(TRIM_THRESHOLD, LARGEST_KEPT)
