"""fairseq patch ``loader-threads``: stop prefetching threads before the interpreter exits."""

import atexit
import contextlib
import queue
import threading

from luna_fairseq.engine.patch import RESULTS, Patch

LOADER_THREADS = Patch(
    "loader-threads",
    RESULTS,
    "A finished training aborts with status 134, because a thread of fairseq still reads a batch when the "
    "interpreter exits. A script with `set -e` then skips averaging and evaluation.",
)


@LOADER_THREADS.at_import
def _register_exit_handler() -> None:
    """Register an exit handler that stops fairseq's prefetching threads, even after an exception."""
    atexit.register(end_loader_threads)


def end_loader_threads() -> None:
    """Stop all prefetching threads of fairseq's ``BufferedIterator``, and wait for them to finish.

    Each thread finishes its current batch. Prefetched batches are discarded.
    """
    from fairseq.data.iterators import BackgroundConsumer

    consumers = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]
    for consumer in consumers:
        consumer._max_len = 0  # the thread's loop compares its count with this length
    for consumer in consumers:
        while consumer.is_alive():
            with contextlib.suppress(queue.Empty):
                while True:  # a full queue would block the thread
                    consumer._queue.get_nowait()
            consumer.join(0.01)
