"""fairseq patch ``starting-point``: choose the checkpoint to start training from.

The patch also ensures that no other training run uses the checkpoint folder and that the validation data can
be loaded. The first argument of a replacement is the original function.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from luna_fairseq.command_errors import is_command
from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.engine.processes import check_world_size
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import find_intact
from luna_fairseq.files.sole_writer import lock_folder

STARTING_POINT = Patch(
    "starting-point",
    RESULTS,
    "If checkpoint_last.pt is damaged or --restore-file does not exist, training silently starts from the "
    "beginning and replaces the checkpoints. Two trainings in one folder replace each other's checkpoints. A "
    "validation text that cannot be read ends the training only after the first epoch.",
)

# The default of --restore-file.
_DEFAULT_FILE = "checkpoint_last.pt"


@STARTING_POINT.replaces("fairseq.checkpoint_utils:load_checkpoint")
def _start_training(load_checkpoint: Function, cfg: Any, trainer: Any, **passthrough_args: Any) -> Any:
    """Replacement for fairseq's ``load_checkpoint`` that chooses an intact checkpoint to start training from.

    Before loading, the checkpoint folder is locked and the validation batches are built, so that errors
    appear before the first epoch.
    """
    from fairseq.distributed.utils import get_global_rank
    from fairseq.trainer import Trainer

    if not isinstance(trainer, Trainer):  # other programs may pass a different kind of object
        return load_checkpoint(cfg, trainer, **passthrough_args)
    check_world_size(trainer.cfg)
    if get_global_rank() == 0 and not cfg.no_save and Path(cfg.save_dir).is_dir():
        lock_folder(Path(cfg.save_dir))
        for leftover in Path(cfg.save_dir).glob("checkpoint*.pt.tmp"):  # of a run that was killed
            leftover.unlink()
    # fairseq checks the lengths of the validation sentences when it builds batches, so build them before
    # training.
    dataset = trainer.cfg.dataset
    if not dataset.disable_validation:
        for split in ["valid"] if dataset.combine_valid_subsets else dataset.valid_subset.split(","):
            trainer.get_valid_iterator(split, disable_iterator_cache=True)
    return load_checkpoint(_choose_checkpoint(cfg, trainer), trainer, **passthrough_args)


def _choose_checkpoint(cfg: Any, trainer: Any) -> Any:
    """Return ``cfg``, or a copy with the newest intact checkpoint to restore if the last one is damaged.

    Raises InputError if the user names a file with --restore-file that does not exist.
    """
    suffix = trainer.checkpoint_suffix or ""
    if cfg.restore_file != _DEFAULT_FILE:
        path = cfg.restore_file.replace(".pt", f"{suffix}.pt")
        if is_command(spawned=True) and not Path(path).is_file() and "://" not in path:
            beside = Path(cfg.save_dir) / path
            hint = f". Use --restore-file {beside}" if beside.is_file() else ""
            raise InputError(f"--restore-file {path} does not exist or is not a file{hint}")
        return cfg
    # In a sharded run, each process has its own file.
    if cfg.no_last_checkpoints or suffix != (cfg.checkpoint_suffix or ""):
        return cfg
    intact = [find_intact(Path(cfg.save_dir), suffix) if trainer.data_parallel_rank == 0 else None]
    if trainer.data_parallel_world_size > 1:
        torch.distributed.broadcast_object_list(intact, src=0, group=trainer.data_parallel_process_group)
    if intact[0] is None:
        return cfg
    cfg = copy.deepcopy(cfg)
    cfg.restore_file, cfg.finetune_from_model = str(intact[0])[: -len(f"{suffix}.pt")] + ".pt", None
    return cfg
