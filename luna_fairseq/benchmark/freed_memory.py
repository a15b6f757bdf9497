"""Keep the memory that a benchmark on a CPU frees, so that its time is not the system's time for pages."""

import ctypes

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make malloc reuse freed blocks of any size, and return none to the system before the process ends.

    MALLOC_MMAP_MAX_=0 and a large MALLOC_TRIM_THRESHOLD_ in the environment do the same for any program.
    Without glibc nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
