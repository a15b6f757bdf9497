"""Reuse of freed memory by malloc, so that page faults do not slow down a benchmark on a CPU."""

import ctypes

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make glibc's malloc reuse freed memory instead of returning it to the operating system.

    Without glibc, this has no effect. For other programs, set the environment variables
    ``MALLOC_MMAP_MAX_=0`` and ``MALLOC_TRIM_THRESHOLD_=68719476736`` instead.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
