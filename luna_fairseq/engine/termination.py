"""SIGTERM, as a batch system sends it before a time limit: finish the update, save, exit with status 143.

Processes agree on the update after which they stop: the request travels with the statistics that fairseq sums
up over all processes in every update. Validation and saving that are due after that update still happen, so
that the run that goes on equals one that was never stopped.
"""

import logging
import os
import signal
import sys
import threading
from typing import Any, Callable, Optional

import torch

from luna_fairseq.engine.mend import RIGHT, Mend

logger = logging.getLogger(__name__)

# 128 + SIGTERM, what a shell reports of a process that SIGTERM ended: start the run again and it goes on.
TERMINATED = 143


class _Run:
    """The training run of this process."""

    def __init__(self) -> None:
        self.cfg: Any = None
        self.trainer: Any = None
        self.epoch_itr: Any = None
        self.saved_at = -1
        self.requested = False
        self.agreed = False

    @property
    def distributed(self) -> bool:
        return self.trainer.data_parallel_world_size > 1

    def request(self, *_: Any) -> None:
        """Handler of SIGTERM. It may come again: from the batch system, the launcher, the parent process."""
        self.requested = True

    def stop_if_asked(self) -> None:
        """Save and end the process when the run is to stop; called between two updates."""
        if self.trainer is None or not (self.agreed if self.distributed else self.requested):
            return
        from fairseq import checkpoint_utils

        updates = self.trainer.get_num_updates()
        if self.saved_at != updates and updates > 0:
            checkpoint_utils.save_checkpoint(self.cfg, self.trainer, self.epoch_itr, None)
        if self.cfg.write_checkpoints_asynchronously:
            from fairseq.file_io import PathManager

            PathManager.async_close()
        if self.distributed:
            torch.distributed.barrier(self.trainer.data_parallel_process_group)
        logger.warning(f"stopped by SIGTERM after {updates} updates: start again to go on")
        sys.exit(TERMINATED)


_run = _Run()


SIGTERM = Mend(
    "sigterm",
    RIGHT,
    what="finishes the update, saves and exits with status 143 when fairseq-train receives SIGTERM; starting "
    "it again goes on",
    why="a batch system sends it before its time limit, and what was trained since the last save would be "
    "lost",
)


@SIGTERM.around("fairseq.checkpoint_utils:save_checkpoint")
def _noting_when_it_saved(
    save_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, *args: Any, **kw: Any
) -> Any:
    saved = save_checkpoint(cfg, trainer, *args, **kw)
    _run.saved_at = trainer.get_num_updates()
    return saved


@SIGTERM.around("fairseq.trainer:Trainer.get_train_iterator")
def _noting_the_iterator(get_train_iterator: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    iterator = get_train_iterator(self, *args, **kwargs)
    if self is not _run.trainer and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _run.request)
    _run.cfg, _run.trainer, _run.epoch_itr = self.cfg.checkpoint, self, iterator
    return iterator


@SIGTERM.around("fairseq.trainer:Trainer._aggregate_logging_outputs")
def _summing_requests(
    aggregate: Callable[..., Any],
    self: Any,
    logging_outputs: Any,
    *extra_stats_to_sum: Any,
    ignore: bool = False,
) -> Any:
    outputs, stats = aggregate(
        self, logging_outputs, *extra_stats_to_sum, float(_run.requested), ignore=ignore
    )
    *stats, requests = stats
    _run.agreed = _run.agreed or bool(requests > 0)
    return outputs, stats


@SIGTERM.around("fairseq.data.iterators:GroupedIterator.__next__")
def _stopping_before_the_next(following: Callable[..., Any], self: Any) -> Any:
    _run.stop_if_asked()
    return following(self)


@SIGTERM.around("fairseq.data.iterators:EpochBatchIterator.__init__")
def _with_shielded_workers(init: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    self.collate_fn = _ShieldedCollate(self.collate_fn)


class _ShieldedCollate:
    """A collate function that has the data loader's worker it runs in outlive a SIGTERM for the whole job.

    A batch system signals every process. torch's workers would end, and the loader would raise in mid-update.
    """

    def __init__(self, collate_fn: Callable[..., Any]) -> None:
        self.collate_fn = collate_fn
        self.shielded_process: Optional[int] = None

    def __call__(self, samples: Any) -> Any:
        if torch.utils.data.get_worker_info() is not None and self.shielded_process != os.getpid():
            self.shielded_process = os.getpid()
            _ignore_sigterm_of_others()
        return self.collate_fn(samples)


def _ignore_sigterm_of_others() -> None:
    """Have this process end by SIGTERM only if its parent sent it."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
