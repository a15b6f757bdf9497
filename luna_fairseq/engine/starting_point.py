"""The beginning of a training: alone in its folder, from the checkpoint that is meant."""

import copy
import logging
import re
from pathlib import Path
from typing import Any, Optional

import torch

from luna_fairseq.engine.checkpoints import damage
from luna_fairseq.engine.mend import RIGHT, Function, Mend
from luna_fairseq.engine.processes import refuse_to_train_apart
from luna_fairseq.errors import InputError, in_command
from luna_fairseq.files.sole_writer import claim

logger = logging.getLogger(__name__)

STARTING_POINT = Mend(
    "starting-point",
    RIGHT,
    "a training begins anew where checkpoint_last.pt is damaged or --restore-file is not there, ends "
    "after an epoch on validation text that cannot be read, and replaces the checkpoints of another in "
    "its folder",
)

# fairseq writes checkpoint7.pt, checkpoint_2_500.pt, checkpoint_best.pt, checkpoint.best_bleu_27.3.pt.
_NAME = r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+){suffix}\.pt"
_BY_ITSELF = "checkpoint_last.pt"  # the default of --restore-file


@STARTING_POINT.around("fairseq.checkpoint_utils:load_checkpoint")
def _begin(load_checkpoint: Function, cfg: Any, trainer: Any, **passthrough_args: Any) -> Any:
    from fairseq.distributed.utils import get_global_rank
    from fairseq.trainer import Trainer

    if not isinstance(trainer, Trainer):  # a program of one's own may hand over what it likes
        return load_checkpoint(cfg, trainer, **passthrough_args)
    refuse_to_train_apart(trainer.cfg)
    if get_global_rank() == 0 and not cfg.no_save and Path(cfg.save_dir).is_dir():
        claim(Path(cfg.save_dir))
    # Batches of the validation text, at which is noticed what is empty or too long: not after an epoch.
    dataset = trainer.cfg.dataset
    if not dataset.disable_validation:
        for split in ["valid"] if dataset.combine_valid_subsets else dataset.valid_subset.split(","):
            trainer.get_valid_iterator(split, disable_iterator_cache=True)
    return load_checkpoint(_with_an_intact_file(cfg, trainer), trainer, **passthrough_args)


def _with_an_intact_file(cfg: Any, trainer: Any) -> Any:
    """``cfg``, of a run that goes on by itself and whose last checkpoint is damaged with another to go on
    from."""
    suffix = trainer.checkpoint_suffix or ""
    if cfg.restore_file != _BY_ITSELF:
        path = cfg.restore_file.replace(".pt", f"{suffix}.pt")
        if in_command(spawned=True) and not Path(path).is_file() and "://" not in path:
            beside = Path(cfg.save_dir) / path
            hint = f"; {beside} does: give that path" if beside.is_file() else ""
            raise InputError(f"--restore-file {path} does not exist, or is no file{hint}")
        return cfg
    # Each process of a sharded run has a file of its own.
    if cfg.no_last_checkpoints or suffix != (cfg.checkpoint_suffix or ""):
        return cfg
    found = [find_intact(Path(cfg.save_dir), suffix) if trainer.data_parallel_rank == 0 else None]
    if trainer.data_parallel_world_size > 1:
        torch.distributed.broadcast_object_list(found, src=0, group=trainer.data_parallel_process_group)
    if found[0] is None:
        return cfg
    cfg = copy.deepcopy(cfg)
    cfg.restore_file, cfg.finetune_from_model = str(found[0])[: -len(f"{suffix}.pt")] + ".pt", None
    return cfg


def find_intact(folder: Path, suffix: str = "") -> Optional[Path]:
    """The checkpoint to go on from where the last one is damaged; None where it is intact or missing.

    Says what it takes. A last one that is intact is what somebody may have put there, and none at all begins
    anew: then a newer one is named only.

    Args:
        folder: where the run writes its checkpoints.
        suffix: of the files' names, before ".pt".

    Raises:
        InputError: the last checkpoint is a folder
    """
    last = folder / f"checkpoint_last{suffix}.pt"
    there = last.is_file()
    if last.exists() and not there:
        raise InputError(f"{last} is a folder, where the checkpoint to go on from should be: remove it")
    fault = damage(last) if there else None
    have = updates_of(last) if there and fault is None else None
    name = re.compile(_NAME.format(suffix=re.escape(suffix)))
    found = [path for path in folder.glob("checkpoint*.pt") if name.fullmatch(path.name)]
    for path in sorted(found, key=_age, reverse=True):
        if there and fault is None and _age(path)[0] <= _age(last)[0]:
            return None
        updates = updates_of(path)
        if updates is None:
            logger.warning(f"{path} is no intact checkpoint of a run: passed over")
        elif fault is not None:
            logger.warning(f"{last} {fault}: going on from {path}, the newest intact one ({updates} updates)")
            return path
        elif updates > (have or 0):
            state = f"has {have} updates" if there else "is missing"
            logger.warning(
                f"{last} {state}, {path} has {updates} updates: --restore-file {path} would go on from it"
            )
            return None
    return None


def _age(path: Path) -> Any:
    # Of files of one age, such as a checkpoint and its copy, the one with more updates in its name.
    return path.stat().st_mtime_ns, [int(number) for number in re.findall(r"\d+", path.stem)]


def updates_of(path: Path) -> Optional[int]:
    """Finished updates of the run that wrote ``path``; None when one cannot train on from it."""
    if damage(path) is not None:
        return None
    try:
        state = torch.load(str(path), map_location="cpu")
        whole = state["model"] and state["extra_state"]["train_iterator"] and "last_optimizer_state" in state
        return int(state["optimizer_history"][-1]["num_updates"]) if whole else None
    except Exception:  # any content whatever
        return None
