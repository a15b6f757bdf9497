"""Setting of malloc that keeps freed memory, so that page faults do not slow down a benchmark on a CPU."""

import ctypes

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make malloc reuse freed blocks of any size instead of returning them to the operating system.

    For other programs, set the environment variables MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_ (to a
    large number). Without glibc, this function does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
