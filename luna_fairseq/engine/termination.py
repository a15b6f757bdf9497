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
from typing import Any, Optional

import torch

from luna_fairseq.engine.mend import RIGHT, Function, Mend

logger = logging.getLogger(__name__)

# 128 + SIGTERM, what a shell reports of a process that SIGTERM ended: start the run again and it goes on.
TERMINATED = 143


class _Run:
    """The training run of this process."""

    trainer: Any = None
    epoch_itr: Any = None
    saved_at = -1
    requested = False  # of this process
    agreed = False  # of all

    def request(self, *_: Any) -> None:
        """Handler of SIGTERM. It may come again: from the batch system, the launcher, the parent process."""
        self.requested = True

    def stop_if_asked(self) -> None:
        """Save and end the process when the run is to stop; called between two updates."""
        trainer = self.trainer
        distributed = trainer is not None and trainer.data_parallel_world_size > 1
        if trainer is None or not (self.agreed if distributed else self.requested):
            return
        from fairseq import checkpoint_utils
        from fairseq.file_io import PathManager

        cfg, updates = trainer.cfg.checkpoint, trainer.get_num_updates()
        if self.saved_at != updates and updates > 0:
            checkpoint_utils.save_checkpoint(cfg, trainer, self.epoch_itr, None)
        if cfg.write_checkpoints_asynchronously:
            PathManager.async_close()
        if distributed:
            torch.distributed.barrier(trainer.data_parallel_process_group)
        logger.warning(f"stopped by SIGTERM after {updates} updates: start again to go on")
        sys.exit(TERMINATED)


_run = _Run()


SIGTERM = Mend(
    "sigterm",
    RIGHT,
    "a batch system sends SIGTERM before its time limit, and what was trained since the last save is "
    "lost: the update is finished and saved, status 143; starting again goes on",
)


@SIGTERM.around("fairseq.checkpoint_utils:save_checkpoint")
def _noting_when_it_saved(save: Function, cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    saved = save(cfg, trainer, *args, **kwargs)
    _run.saved_at = trainer.get_num_updates()
    return saved


@SIGTERM.around("fairseq.trainer:Trainer.get_train_iterator")
def _noting_the_iterator(get_train_iterator: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    iterator = get_train_iterator(self, *args, **kwargs)
    if self is not _run.trainer and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _run.request)
    _run.trainer, _run.epoch_itr = self, iterator
    return iterator


@SIGTERM.around("fairseq.trainer:Trainer._aggregate_logging_outputs")
def _summing_requests(
    aggregate: Function, self: Any, logging_outputs: Any, *extra: Any, ignore: bool = False
) -> Any:
    extra = (*extra, float(_run.requested))
    outputs, (*stats, requests) = aggregate(self, logging_outputs, *extra, ignore=ignore)
    _run.agreed = _run.agreed or bool(requests > 0)
    return outputs, stats


@SIGTERM.around("fairseq.data.iterators:GroupedIterator.__next__")
def _stopping_before_the_next(following: Function, self: Any) -> Any:
    _run.stop_if_asked()
    return following(self)


@SIGTERM.around("fairseq.data.iterators:EpochBatchIterator.__init__")
def _with_shielded_workers(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    self.collate_fn = _ShieldedCollate(self.collate_fn)


class _ShieldedCollate:
    """A collate function that has the data loader's worker it runs in outlive a SIGTERM for the whole job.

    A batch system signals every process. torch's workers would end, and the loader would raise in mid-update.
    """

    def __init__(self, collate_fn: Function) -> None:
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
