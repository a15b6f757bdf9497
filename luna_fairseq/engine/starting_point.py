"""fairseq patch ``starting-point``: choose the checkpoint to start training from.

The patch also ensures that no other training run uses the checkpoint folder and that the validation data can
be loaded.
"""

import copy
import logging
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from luna_fairseq.command_errors import is_command
from luna_fairseq.engine.early_stopping import forget_earlier_training
from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.engine.processes import check_world_size
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import count_updates, describe_damage, find_intact, list_newest_first
from luna_fairseq.files.sole_writer import lock_folder

logger = logging.getLogger(__name__)

STARTING_POINT = Patch(
    "starting-point",
    RESULTS,
    "If checkpoint_last.pt is damaged or --restore-file does not exist, training silently starts from the "
    "beginning and replaces the checkpoints. So does a repeated command with --restore-file or --reset-... "
    "Two trainings in one folder replace each other's checkpoints. A validation text that cannot be read "
    "ends the training only after the first epoch.",
)

# The default of --restore-file.
_DEFAULT_FILE = "checkpoint_last.pt"
_RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
# Options of schedules whose default is --max-update.
_LIMITS = ("total_num_update", "max_update")


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
    forget_earlier_training()
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
    """Return ``cfg``, or a copy with the checkpoint to resume from.

    This is the last checkpoint, or the newest intact one if the last is damaged. If the command was
    interrupted, ``--restore-file`` and ``--reset-...`` have no effect on a checkpoint that it has saved.
    Raises InputError if the user names a file that does not exist.
    """
    suffix = trainer.checkpoint_suffix or ""
    last = Path(cfg.save_dir) / f"checkpoint_last{suffix}.pt"
    # In a sharded run, each process has its own file.
    is_sharded = suffix != (cfg.checkpoint_suffix or "")
    resets = [name for name in _RESETS if getattr(cfg, name)]
    if (resets or cfg.restore_file != _DEFAULT_FILE) and not is_sharded:
        own = _ask_first_process(trainer, lambda: _find_own_checkpoint(trainer, last, suffix))
        if own is not None:
            logger.warning(
                f"training resumes from {own}, which a run with the same --restore-file and --reset-... has "
                "saved. To start again, use another --save-dir"
            )
            cfg = copy.deepcopy(cfg)
            cfg.restore_file = _DEFAULT_FILE
            for name in resets:
                setattr(cfg, name, False)
    if cfg.restore_file != _DEFAULT_FILE:
        _check_exists("--restore-file", cfg.restore_file.replace(".pt", f"{suffix}.pt"), Path(cfg.save_dir))
        return cfg
    if not last.exists():
        for option in ("continue_once", "finetune_from_model"):
            _check_exists(f"--{option.replace('_', '-')}", getattr(cfg, option, None), Path(cfg.save_dir))
    if cfg.no_last_checkpoints or is_sharded:
        return cfg
    intact = _ask_first_process(trainer, lambda: find_intact(Path(cfg.save_dir), suffix))
    if intact is None:
        return cfg
    cfg = copy.deepcopy(cfg)
    cfg.restore_file, cfg.finetune_from_model = str(intact)[: -len(f"{suffix}.pt")] + ".pt", None
    return cfg


def _ask_first_process(trainer: Any, question: Function) -> Any:
    """Call a function without arguments in the first process, and return its result in all processes."""
    answer = [question() if trainer.data_parallel_rank == 0 else None]
    if trainer.data_parallel_world_size > 1:
        torch.distributed.broadcast_object_list(answer, src=0, group=trainer.data_parallel_process_group)
    return answer[0]


def _check_exists(option: str, path: Optional[str], save_dir: Path) -> None:
    """Raise InputError if ``path``, the value of an option, is neither None nor a file nor a URL."""
    if path is None or not is_command(spawned=True) or Path(path).is_file() or "://" in path:
        return
    beside = save_dir / path
    hint = f". Use {option} {beside}" if beside.is_file() else ""
    raise InputError(f"{option} {path} does not exist or is not a file{hint}")


def _find_own_checkpoint(trainer: Any, last: Path, suffix: str) -> Optional[Path]:
    """Return ``last``, or the newest intact checkpoint if ``last`` is damaged, if this run has saved it.

    The result is None if ``last`` is missing, or if the run that saved the checkpoint had another start.
    """
    if not last.is_file():
        return None
    newest: Optional[Path] = last
    if describe_damage(last) is not None:
        others = list_newest_first(last.parent, suffix)
        newest = next((path for path in others if count_updates(path) is not None), None)
    return newest if newest is not None and _has_same_start(trainer, newest) else None


def _has_same_start(trainer: Any, path: Path) -> bool:
    """Return True if the run that saved the intact checkpoint ``path`` had the starting point of this run.

    The starting point is ``--restore-file`` and ``--reset-...``. The optimizer and the schedule must be equal
    as well, because another learning rate is a reason to reset the schedule again. An interrupted run may
    continue with another ``--max-update``.
    """
    from omegaconf import OmegaConf

    stored = torch.load(str(path), map_location="cpu").get("cfg") or {}
    ours: Any = OmegaConf.to_container(trainer.cfg, resolve=True, enum_to_str=True)
    starts = (
        [(cfg.get("checkpoint") or {}).get(name) for name in ("restore_file", *_RESETS)]
        + [cfg.get("optimizer"), _schedule_without_limit(cfg)]
        for cfg in (stored, ours)
    )
    return next(starts) == next(starts)


def _schedule_without_limit(cfg: Any) -> Dict[str, Any]:
    """Return the options of the learning rate schedule, without those that are equal to --max-update."""
    limit = (cfg.get("optimization") or {}).get("max_update")
    schedule = cfg.get("lr_scheduler") or {}
    return {name: value for name, value in schedule.items() if name not in _LIMITS or value != limit}
