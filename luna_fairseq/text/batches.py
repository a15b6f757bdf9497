"""Process long texts in batches, in one or more processes."""

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
    """Apply a function to batches of items, optionally in multiple processes.

    Only a few batches are in memory at a time, so ``items`` need not fit into memory.

    Args:
        function: function that maps a list of items to a list of results of the same length. Must be
            picklable if ``workers`` is greater than 1.
        items: items to process. The iterable is consumed batch by batch.
        workers: number of processes. If 1, the function runs in the current process.
        batch: number of items per batch (default: 2,000).

    Returns:
        Iterator over the results, in the order of the items.

    Raises:
        InputError: A worker process was killed, for example because it ran out of memory.

    Example:
        >>> list(map_batches(lambda lines: [len(line) for line in lines], ["a", "bcd"], workers=1))
        [1, 3]
    """
    items = iter(items)
    batches = iter(lambda: list(islice(items, batch)), [])
    if workers == 1:
        return chain.from_iterable(map(function, batches))
    return chain.from_iterable(_map_in_processes(function, batches, workers))


def _map_in_processes(
    function: Callable[[List[Any]], List[Any]], batches: Iterator[List[Any]], workers: int
) -> Iterator[List[Any]]:
    """Apply a function to batches in a pool of processes, preserving their order.

    At most three batches per process are in flight at a time, which bounds the memory use.

    Args:
        function: picklable function that maps a list of items to a list of results.
        batches: iterator over lists of items.
        workers: number of processes.

    Yields:
        List of results for one batch.

    Raises:
        InputError: A worker process was killed.
    """
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
