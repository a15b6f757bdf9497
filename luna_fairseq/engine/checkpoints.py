"""Checkpoint files: what torch.load accepts, and writing them whole."""

import argparse
import os
from pathlib import Path
from typing import Any, List

import numpy
import torch

from luna_fairseq.engine.mend import RIGHT, RUNS, Function, Mend
from luna_fairseq.engine.underneath import at_least
from luna_fairseq.errors import InputError

CHECKPOINT_CLASSES = Mend(
    "checkpoint-classes",
    RUNS,
    "torch.load's check (weights_only), which stays on, refuses argparse.Namespace and numpy's classes "
    "(meters of --eval-bleu), which fairseq's own checkpoints hold, and omegaconf's, which a run of "
    "several processes hands on",
    versions="torch >= 2.6",
    needed=lambda: at_least("torch", 2, 6),
)

WHOLE_FILES = Mend(
    "whole-files",
    RIGHT,
    "checkpoint_last.pt and checkpoint_best.pt are copied in place, so that a killed run leaves half a "
    "file; on a full disk a write is tried three times, each time behind what it wrote before",
)


@CHECKPOINT_CLASSES.around()
def _allow_checkpoint_classes() -> None:
    allowed: List[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # What a numpy.dtype is an instance of: numpy.dtypes.Float64DType and its like.
    allowed += {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    makers: List[Any] = [x.__reduce__()[0] for x in (numpy.zeros(0), numpy.float64())]
    # numpy 2 renamed the module (1.26 has a shell of the new one); a file may have been written under either.
    for function in makers:
        allowed += [(function, f"numpy.{name}.multiarray.{function.__name__}") for name in ("core", "_core")]
    torch.serialization.add_safe_globals(allowed)


@CHECKPOINT_CLASSES.around("fairseq.distributed.utils:_broadcast_object_slow")
def _handed_on(broadcast: Function, obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """By torch's own function, which has no check: what another process of this run sends is no file."""
    if not isinstance(group, torch.distributed.ProcessGroup):  # of TPUs
        return broadcast(obj, src_rank, group, dist_device)
    box = [obj]
    torch.distributed.broadcast_object_list(box, src=src_rank, group=group, device=dist_device)
    return box[0]


@WHOLE_FILES.around("fairseq.checkpoint_utils:_torch_persistent_save")
def _written_once(save: Function, obj: Any, f: Any) -> Any:
    return save(obj, f) if isinstance(f, str) else torch.save(obj, f)


@WHOLE_FILES.around("fairseq.checkpoint_utils:torch_persistent_save")
def _or_not_at_all(save: Function, obj: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return save(obj, filename, *args, **kwargs)
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file
        found = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, OSError)), None)
        temporary = Path(f"{filename}.tmp")
        if temporary.is_file():
            temporary.unlink()
        if found is None:
            raise
        raise InputError(
            f"cannot write {filename}: {found.strerror}. Checkpoints of before are as they were"
        ) from error


@WHOLE_FILES.around("fairseq.file_io:PathManager.copy")
def _copy_whole(copy: Function, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    from fairseq.file_io import PathManager

    if not (overwrite and PathManager.supports_rename(dst_path)):
        return copy(src_path, dst_path, overwrite)
    temporary = f"{dst_path}.tmp"
    done = copy(src_path, temporary, overwrite=True)
    os.replace(temporary, dst_path)
    return done
