"""fairseq patch ``stopping``: save a checkpoint and stop after SIGTERM, and stop at --max-update.

A batch system sends SIGTERM shortly before a job reaches its time limit. Training then finishes the current
update, saves a checkpoint and exits with status 143. If validation or saving is due after this update, it
still happens, so that a resumed run is identical to an uninterrupted run.

All processes stop after the same update. In every update, fairseq sums statistics over the processes,
including a flag for the signal.
"""

import logging
import os
import signal
import sys
import threading
from typing import Any, Optional

import torch

from luna_fairseq.engine.patch import RESULTS, Function, Patch

logger = logging.getLogger(__name__)

# Exit status that a shell reports for a process terminated by SIGTERM: 128 + SIGTERM.
TERMINATED = 143


class _TrainingRun:
    """State of the training run in this process.

    Attributes:
        trainer: fairseq's trainer; None before training.
        epoch_itr: fairseq's iterator over the current epoch.
        saved_at: number of updates in the last checkpoint; -1 if there is none.
        requested: True if this process has received SIGTERM.
        agreed: True if all processes know that one of them has received SIGTERM.
    """

    trainer: Any = None
    epoch_itr: Any = None
    saved_at = -1
    requested = False
    agreed = False

    def request(self, *_: Any) -> None:
        """Remember that this process has received SIGTERM.

        This is the signal handler. The batch system, the launcher and the parent process may each send the
        signal.
        """
        self.requested = True

    def stop_if_requested(self) -> None:
        """Save a checkpoint and exit if SIGTERM was received.

        Call this method between two updates.

        Raises:
            SystemExit: SIGTERM was received. The exit status is 143.
        """
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
        logger.warning(f"stopped by SIGTERM after {updates} updates. Repeat the command to resume")
        sys.exit(TERMINATED)


_run = _TrainingRun()


STOPPING = Patch(
    "stopping",
    RESULTS,
    "If a batch system ends a training with SIGTERM, all updates since the last checkpoint are lost. A "
    "training that has reached --max-update makes another update each time its command is repeated.",
)


@STOPPING.replaces("fairseq.checkpoint_utils:save_checkpoint")
def _save_and_remember(save: Function, cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Save a checkpoint, and remember its update count.

    Replaces fairseq's ``checkpoint_utils.save_checkpoint``.

    Args:
        save: fairseq's original function.
        cfg: checkpoint options.
        trainer: fairseq's trainer.
        args: remaining arguments of the original function.
        kwargs: remaining keyword arguments of the original function.

    Returns:
        Result of the original function.
    """
    result = save(cfg, trainer, *args, **kwargs)
    _run.saved_at = trainer.get_num_updates()
    return result


@STOPPING.replaces("fairseq_cli.train:train")
def _train_unless_finished(train: Function, cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Any:
    """Train for one epoch, unless --max-update has already been reached.

    Replaces fairseq-train's function ``train``. The SIGTERM handler is installed before the first epoch.

    Args:
        train: fairseq's original function.
        cfg: command configuration.
        trainer: fairseq's trainer.
        task: fairseq task.
        epoch_itr: iterator over the epochs of the training set.

    Returns:
        Validation losses, and a flag that is True if training should stop.
    """
    limit, updates = cfg.optimization.max_update, trainer.get_num_updates()
    if 0 < limit <= updates:
        logger.warning(
            f"nothing to train: the run has made {updates:,} updates, and --max-update is {limit:,}"
        )
        return [None], True
    if trainer is not _run.trainer and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _run.request)
    _run.trainer, _run.epoch_itr = trainer, epoch_itr
    return train(cfg, trainer, task, epoch_itr)


@STOPPING.replaces("fairseq.trainer:Trainer._aggregate_logging_outputs")
def _sum_requests(
    aggregate: Function, self: Any, logging_outputs: Any, *extra: Any, ignore: bool = False
) -> Any:
    """Sum statistics over all processes, and check whether any process has received SIGTERM.

    Replaces fairseq's ``Trainer._aggregate_logging_outputs``.

    Args:
        aggregate: fairseq's original method.
        self: fairseq's trainer.
        logging_outputs: statistics of this process.
        extra: additional numbers to sum over the processes.
        ignore: True if this process has a dummy batch, whose statistics are ignored (default: False).

    Returns:
        Statistics of all processes, and the sums of ``extra``.
    """
    extra = (*extra, float(_run.requested))
    outputs, (*stats, requests) = aggregate(self, logging_outputs, *extra, ignore=ignore)
    _run.agreed = _run.agreed or bool(requests > 0)
    return outputs, stats


@STOPPING.replaces("fairseq.data.iterators:GroupedIterator.__next__")
def _stop_before_next_update(get_next: Function, self: Any) -> Any:
    """Return the batches of the next update. If SIGTERM was received, save a checkpoint and exit.

    Replaces fairseq's ``GroupedIterator.__next__``.

    Args:
        get_next: fairseq's original method.
        self: fairseq's iterator over updates.

    Returns:
        List of batches, as returned by the original method.
    """
    _run.stop_if_requested()
    return get_next(self)


@STOPPING.replaces("fairseq.data.iterators:EpochBatchIterator.__init__")
def _shield_workers(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Build a batch iterator whose data loader workers ignore SIGTERM from a batch system.

    Replaces the constructor of fairseq's ``EpochBatchIterator``.

    Args:
        init: original constructor of the iterator.
        self: batch iterator.
        args: arguments of the constructor.
        kwargs: keyword arguments of the constructor.
    """
    init(self, *args, **kwargs)
    self.collate_fn = _ShieldedCollate(self.collate_fn)


class _ShieldedCollate:
    """Collate function that makes its data loader worker ignore SIGTERM from a batch system.

    A batch system sends SIGTERM to every process of a job. If a worker terminated, torch's data loader would
    raise an error in the middle of an update.

    Args:
        collate_fn: original collate function, which builds a batch from samples.
    """

    def __init__(self, collate_fn: Function) -> None:
        self.collate_fn = collate_fn
        self.shielded_process: Optional[int] = None

    def __call__(self, samples: Any) -> Any:
        """Build a batch from samples. The first call in a worker also changes its SIGTERM handling.

        Args:
            samples: samples of the batch.

        Returns:
            Result of the original collate function.
        """
        if torch.utils.data.get_worker_info() is not None and self.shielded_process != os.getpid():
            self.shielded_process = os.getpid()
            _ignore_sigterm_of_others()
        return self.collate_fn(samples)


def _ignore_sigterm_of_others() -> None:
    """Make this process ignore SIGTERM, unless its parent process sends the signal.

    This has no effect on macOS.
    """
    if not hasattr(signal, "sigwaitinfo"):  # on macOS
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
