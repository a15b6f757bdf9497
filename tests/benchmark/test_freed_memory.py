"""A benchmark on a CPU reuses the memory that it frees."""

import ctypes

import pytest
from forked import run_code

from luna_fairseq.benchmark import freed_memory

# Prints the number of page faults while blocks of 64 MiB are allocated and freed.
PAGES = """
import resource, torch
from luna_fairseq.benchmark.freed_memory import keep_freed_memory
if {keep}:
    keep_freed_memory()
def fill():
    for _ in range(5):
        torch.ones(1 << 24)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(keep):
    return int(run_code(PAGES.format(keep=keep)).split()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no such switch")
def test_freed_memory_is_reused_without_page_faults():
    # A page is 4 KiB or, where the kernel prefers huge ones, 2 MiB, of which a block has 32.
    assert pages(keep=False) >= 5 * 32
    assert pages(keep=True) < 32


def test_nothing_happens_without_mallopt(monkeypatch):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: object())
    freed_memory.keep_freed_memory()
