"""End the threads that read batches ahead before the interpreter ends."""

import atexit
import contextlib
import queue
import threading

from luna_fairseq.engine.patch import RESULTS, Patch

LOADER_THREADS = Patch(
    "loader-threads",
    RESULTS,
    "A finished training aborts with status 134, so that a script with `set -e` skips averaging and "
    "evaluation: fairseq leaves a thread in the middle of a batch when the interpreter ends.",
)


@LOADER_THREADS.at_import
def _register_exit_handler() -> None:
    """Have the interpreter call :func:`end_loader_threads` when it exits.

    Exit handlers run after a return, an exception and sys.exit, while threads can still take the lock of the
    interpreter.
    """
    atexit.register(end_loader_threads)


def end_loader_threads() -> None:
    """Stop every thread of fairseq's ``BufferedIterator`` after its current batch, and join the thread.

    The batches that were read ahead are dropped.
    """
    from fairseq.data.iterators import BackgroundConsumer

    consumers = [thread for thread in threading.enumerate() if isinstance(thread, BackgroundConsumer)]
    for consumer in consumers:
        consumer._max_len = 0  # the loop of the thread compares its count with this length
    for consumer in consumers:
        while consumer.is_alive():
            with contextlib.suppress(queue.Empty):
                while True:  # a full queue would block the thread
                    consumer._queue.get_nowait()
            consumer.join(0.01)
