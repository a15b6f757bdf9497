"""fairseq patch ``stopping``: save a checkpoint and stop after SIGTERM, and stop when training is complete.

A batch system sends SIGTERM shortly before a job reaches its time limit. Training then finishes the current
update, saves a checkpoint and exits with status 143. If validation or saving is due after this update, it
still happens, so that a resumed run is identical to an uninterrupted run. SIGHUP has the same effect.

All processes of a run stop after the same update. fairseq sums statistics over the processes in every update,
and this module adds one more number to the sum: 1 for a process that has received a signal.
"""

import copy
import logging
import os
import signal
import sys
import threading
from typing import Any, Optional

import torch

from luna_fairseq.child_processes import TERMINATED, bind, handle_stop_signals
from luna_fairseq.engine.early_stopping import has_run_out_of_patience
from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.errors import InputError

logger = logging.getLogger(__name__)

STOPPING = Patch(
    "stopping",
    RESULTS,
    "If a batch system ends a run with SIGTERM, all updates since the last checkpoint are lost. A run "
    "that has reached --max-update or was ended by --patience or --stop-time-hours trains on each time its "
    "command is repeated. A run goes on if the command that started it is killed.",
)


class StopRequest:
    """Request to stop a training run, kept in the attribute ``stop_request`` of the trainer.

    Attributes:
        is_received: True if this process has received a signal.
        is_agreed: True if any process has received a signal. The value is the same in all processes.
        saved_at: number of updates in the last checkpoint, or -1 if there is none.
        finished_epoch: batch iterator of the epoch that has just ended, or None.
    """

    def __init__(self) -> None:
        self.is_received = self.is_agreed = False
        self.saved_at = -1
        self.finished_epoch: Any = None

    @classmethod
    def of(cls, trainer: Any) -> "StopRequest":
        """Return the trainer's stop request. The first call creates it."""
        if not hasattr(trainer, "stop_request"):
            trainer.stop_request = cls()
        return trainer.stop_request

    def receive(self, *_: Any) -> None:
        """Set ``is_received``. This is the handler of a training process for SIGTERM and SIGHUP."""
        self.is_received = True

    def stop_if_agreed(self, trainer: Any, epoch_itr: Any) -> None:
        """Save a checkpoint and exit with status 143 if a signal was received. Call this between updates.

        With several processes, all of them exit after the same update (see ``is_agreed``). ``epoch_itr`` is
        the batch iterator of the last update, or None before the first update. Raises InputError if
        ``--no-save`` forbids the checkpoint.
        """
        is_distributed = trainer.data_parallel_world_size > 1
        if not (self.is_agreed if is_distributed else self.is_received):
            return
        from fairseq import checkpoint_utils
        from fairseq.file_io import PathManager

        cfg, updates = trainer.cfg.checkpoint, trainer.get_num_updates()
        if cfg.no_save:
            raise InputError(f"stopped by a signal after {updates} updates. --no-save has saved none of them")
        has_trained = epoch_itr is not None and updates > 0
        if has_trained and (self.saved_at != updates or cfg.no_last_checkpoints):
            cfg = copy.deepcopy(cfg)
            cfg.no_last_checkpoints = False  # the run resumes from checkpoint_last.pt
            checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
        if cfg.write_checkpoints_asynchronously:
            PathManager.async_close()
        if is_distributed:
            torch.distributed.barrier(trainer.data_parallel_process_group)
        logger.warning(f"stopped by a signal after {updates} updates. Repeat the command to resume")
        sys.exit(TERMINATED)


STOPPING.at_import(bind)


@STOPPING.replaces("fairseq.checkpoint_utils:save_checkpoint")
def _save_and_remember(save: Function, cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``save_checkpoint`` that records the update count, so that no save is repeated."""
    result = save(cfg, trainer, *args, **kwargs)
    StopRequest.of(trainer).saved_at = trainer.get_num_updates()
    return result


@STOPPING.replaces("fairseq_cli.train:train")
def _train_unless_finished(train: Function, cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Any:
    """Replacement for fairseq-train's ``train`` that trains no epoch if the run is complete or must stop.

    After a signal, save a checkpoint and exit. If the run has reached --max-update or has ended by
    --patience or --stop-time-hours, return ([None], True): no validation loss, and training must stop.
    """
    limit, updates = cfg.optimization.max_update, trainer.get_num_updates()
    # A trainer has no `stop_request` before the first epoch of this process. --patience and --stop-time-hours
    # are checked only then, with the values from the checkpoint. Later, fairseq itself ends the run.
    is_first = not hasattr(trainer, "stop_request")
    reason = None
    if 0 < limit <= updates:
        reason = f"--max-update is {limit:,}"
    elif is_first and has_run_out_of_patience(cfg.checkpoint.patience):
        reason = f"--patience {cfg.checkpoint.patience} has ended it. A larger --patience continues"
    elif is_first and 0 < cfg.optimization.stop_time_hours < trainer._previous_training_time / 3600:
        hours = cfg.optimization.stop_time_hours
        reason = f"--stop-time-hours {hours:g} has ended it. A larger --stop-time-hours continues"
    if reason is not None:
        logger.warning(f"nothing to train: the run has made {updates:,} updates, and {reason}")
        return [None], True  # no validation loss; stop
    request = StopRequest.of(trainer)
    if is_first:
        handle_stop_signals(request.receive)
    # With data in shards, `epoch_itr` is a new iterator, which has no state to save.
    finished, request.finished_epoch = request.finished_epoch, None
    request.stop_if_agreed(trainer, finished)
    return train(cfg, trainer, task, epoch_itr)


@STOPPING.replaces("fairseq_cli.train:validate_and_save")
def _stop_after_update(
    validate_and_save: Function,
    cfg: Any,
    trainer: Any,
    task: Any,
    epoch_itr: Any,
    valid_subsets: Any,
    end_of_epoch: bool,
) -> Any:
    """Replacement for ``validate_and_save`` that also saves a checkpoint and exits after a signal.

    At the end of an epoch, the process exits before the next epoch, so that fairseq logs the finished epoch.
    """
    result = validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
    _, should_stop = result
    request = StopRequest.of(trainer)
    if end_of_epoch:
        request.finished_epoch = epoch_itr
    elif not should_stop:
        request.stop_if_agreed(trainer, epoch_itr)
    return result


@STOPPING.replaces("fairseq.trainer:Trainer._aggregate_logging_outputs")
def _sum_requests(
    aggregate: Function, self: Any, logging_outputs: Any, *extra: Any, ignore: bool = False
) -> Any:
    """Replacement for ``_aggregate_logging_outputs`` that also counts the processes that received a signal.

    All processes therefore stop after the same update.
    """
    request = StopRequest.of(self)
    extra = (*extra, float(request.is_received))
    outputs, (*stats, requests) = aggregate(self, logging_outputs, *extra, ignore=ignore)
    request.is_agreed = request.is_agreed or bool(requests > 0)
    return outputs, stats


@STOPPING.replaces("fairseq.data.iterators:EpochBatchIterator.__init__")
def _shield_workers(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for ``EpochBatchIterator.__init__`` that makes data loader workers ignore SIGTERM."""
    init(self, *args, **kwargs)
    self.collate_fn = _ShieldedCollate(self.collate_fn)


class _ShieldedCollate:
    """Collate function wrapper that makes a data loader worker ignore signals of a batch system or terminal.

    A batch system sends SIGTERM to every process of a job. If a worker terminated, torch's data loader would
    raise an error in the middle of an update.
    """

    def __init__(self, collate_fn: Function) -> None:
        self.collate_fn = collate_fn
        self.shielded_process: Optional[int] = None

    def __call__(self, samples: Any) -> Any:
        if torch.utils.data.get_worker_info() is not None and self.shielded_process != os.getpid():
            self.shielded_process = os.getpid()
            _ignore_signals_of_others()
        return self.collate_fn(samples)


def _ignore_signals_of_others() -> None:
    """Make this process ignore SIGHUP, and SIGTERM unless its parent sent it. On macOS, do nothing."""
    if not hasattr(signal, "sigwaitinfo"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
