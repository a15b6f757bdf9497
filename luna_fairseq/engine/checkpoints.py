"""Checkpoint files: classes that torch.load accepts, and complete writes."""

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
    "No checkpoint loads that holds BLEU of --eval-bleu or older options, and no run of several processes "
    "resumes: torch.load (weights_only) refuses numpy's and omegaconf's classes and argparse.Namespace.",
    versions="torch >= 2.6",
    needed=lambda: at_least("torch", 2, 6),
)

WHOLE_FILES = Mend(
    "whole-files",
    RIGHT,
    "A killed run leaves half of checkpoint_last.pt or checkpoint_best.pt, and a full disk leaves a damaged "
    "checkpoint that looks complete.",
)


@CHECKPOINT_CLASSES.around()
def _allow_checkpoint_classes() -> None:
    allowed: List[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # Classes of dtypes, such as numpy.dtypes.Float64DType.
    allowed += {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    makers: List[Any] = [x.__reduce__()[0] for x in (numpy.zeros(0), numpy.float64())]
    # numpy 2 renamed the module, and a file may name either.
    for function in makers:
        allowed += [(function, f"numpy.{name}.multiarray.{function.__name__}") for name in ("core", "_core")]
    torch.serialization.add_safe_globals(allowed)


@CHECKPOINT_CLASSES.around("fairseq.distributed.utils:_broadcast_object_slow")
def _handed_on(broadcast: Function, obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Broadcast with torch's own function, which has no such check: the sender is a process of this run."""
    if not isinstance(group, torch.distributed.ProcessGroup):  # a group of TPUs
        return broadcast(obj, src_rank, group, dist_device)
    box = [obj]
    torch.distributed.broadcast_object_list(box, src=src_rank, group=group, device=dist_device)
    return box[0]


@WHOLE_FILES.around("fairseq.checkpoint_utils:_torch_persistent_save")
def _write_once(save: Function, obj: Any, f: Any) -> Any:
    """Write once, where fairseq tries three times, each time behind the bytes of the failed one.

    Raises:
        InputError: the disk is full, or another error of the file; the incomplete file is removed.
    """
    if isinstance(f, str):
        return save(obj, f)
    name = str(getattr(f, "name", ""))
    try:
        torch.save(obj, f)
        f.flush()
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file
        found = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, OSError)), None)
        if name.endswith(".tmp"):
            Path(name).unlink()
        if found is None:
            raise
        raise InputError(
            f"cannot write {name[: -len('.tmp')] if name.endswith('.tmp') else name}: {found.strerror}. "
            "Earlier checkpoints are unchanged"
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
