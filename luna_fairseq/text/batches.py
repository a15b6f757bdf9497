"""Process long texts in batches, in one process or several."""

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
    """Apply a function to batches of items, optionally in several processes.

    Only a few batches are in memory at a time, so ``items`` may be longer than the memory.

    Args:
        function: function from a list of items to a list of results of the same length. Must be picklable if
            ``workers`` is above 1.
        items: items to process. The iterable is consumed batch by batch.
        workers: number of processes. With 1, the function runs in the current process.
        batch: number of items in a batch (default: 2,000).

    Returns:
        Iterator over the results, in the order of the items.

    Raises:
        InputError: A process was killed, for example because memory ran out.

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
    """Apply a function to batches in a pool of processes, keeping the order of the batches.

    At most three batches for each process are submitted at a time. This limit bounds the memory.

    Args:
        function: picklable function from a list of items to a list of results.
        batches: iterator over lists of items.
        workers: number of processes.

    Yields:
        List of the results of one batch.

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
