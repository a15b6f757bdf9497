"""Application of a function to a long text in batches, in one or more processes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Callable, Deque, Iterable, Iterator, List

from luna_fairseq.errors import InputError

BATCH = 2000
# Number of batches in flight per process. The limit keeps long texts from exhausting memory.
WAITING_PER_WORKER = 3


def map_batches(
    function: Callable[[List[Any]], List[Any]], items: Iterable[Any], workers: int, batch: int = BATCH
) -> Iterator[Any]:
    """Apply a function to batches of items, and yield the results in the order of the items.

    ``function`` maps a list to a list of the same length. ``workers`` is the number of processes. If it is
    larger than 1, the function must be picklable. Only a few batches are in memory at a time.
    """
    items = iter(items)
    batches = iter(lambda: list(islice(items, batch)), [])
    if workers == 1:
        return chain.from_iterable(map(function, batches))
    return chain.from_iterable(_map_in_processes(function, batches, workers))


def _map_in_processes(
    function: Callable[[List[Any]], List[Any]], batches: Iterator[List[Any]], workers: int
) -> Iterator[List[Any]]:
    """Apply a function to batches in a pool of processes, and yield the results in order."""
    with ProcessPoolExecutor(workers) as pool:
        waiting: Deque[Future] = deque()
        try:
            for batch in batches:
                waiting.append(pool.submit(function, batch))
                if len(waiting) == workers * WAITING_PER_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise InputError(
                "One of the processes was killed, possibly because memory ran out. Use fewer --workers."
            ) from None
        finally:
            for future in waiting:
                future.cancel()
