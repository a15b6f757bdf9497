"""Long lists of text, worked on by several processes in batches."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, Callable, Deque, Iterable, Iterator, List

from luna_fairseq.errors import InputError

BATCH = 2000
# Batches that wait for a process, so that the whole text is never in memory.
WAITING_PER_WORKER = 3


def map_batches(
    function: Callable[[List[Any]], List[Any]], items: Iterable[Any], workers: int, batch: int = BATCH
) -> Iterator[Any]:
    """Results of ``function``, in the order of the items.

    Args:
        function: takes a list of items and returns as many results; sent to other processes.
        items: drawn as they are needed.
        workers: processes; 1 works in this one.
        batch: how many items are given to ``function`` at a time.

    Raises:
        InputError: a process was killed.
    """
    items = iter(items)
    batches = iter(lambda: list(islice(items, batch)), [])
    if workers == 1:
        return chain.from_iterable(map(function, batches))
    return chain.from_iterable(_in_processes(function, batches, workers))


def _in_processes(
    function: Callable[[List[Any]], List[Any]], batches: Iterator[List[Any]], workers: int
) -> Iterator[List[Any]]:
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
                "one of the processes was killed, for want of memory perhaps: give fewer --workers"
            ) from None
        finally:
            for future in waiting:
                future.cancel()
