"""Parallel processing of long texts in batches."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Callable, Deque, Iterable, Iterator, List

from luna_fairseq.errors import InputError

BATCH = 2000
# Number of batches in flight for each process. A limit keeps long texts from filling the memory.
WAITING_PER_WORKER = 3


def map_batches(
    function: Callable[[List[Any]], List[Any]], items: Iterable[Any], workers: int, batch: int = BATCH
) -> Iterator[Any]:
    """Apply a function to batches of items, possibly in several processes.

    Args:
        function: picklable function from a list of items to a list of results of the same length.
        items: items to process. They are read when they are needed.
        workers: number of processes. With 1, the function runs in the current process.
        batch: number of items in a batch (default: 2,000).

    Returns:
        Iterator over the results, in the order of the items.

    Raises:
        InputError: A process was killed.

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
    """Yield the result of each batch, in the order of the batches.

    At most ``WAITING_PER_WORKER`` batches for each process are in memory at a time.

    Args:
        function: picklable function from a batch to the list of its results.
        batches: iterator over lists of items.
        workers: number of processes.

    Yields:
        List of the results of a batch.

    Raises:
        InputError: A process was killed.
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
