"""fairseq patches ``checkpoint-classes`` and ``whole-files``, for loading and saving checkpoints.

The first patch lets torch.load read NumPy and argparse objects in checkpoints. The second ensures that no
incomplete file is left behind.
"""

import argparse
import os
from pathlib import Path
from typing import Any, List

import numpy
import torch

from luna_fairseq.engine.patch import RESULTS, RUNS, Function, Patch
from luna_fairseq.engine.versions import is_at_least
from luna_fairseq.errors import InputError

CHECKPOINT_CLASSES = Patch(
    "checkpoint-classes",
    RUNS,
    "Checkpoints with the BLEU of --eval-bleu or with older options do not load, and runs of several "
    "processes do not resume, because torch.load (weights_only) refuses classes of numpy and omegaconf and "
    "argparse.Namespace.",
    versions="torch >= 2.6",
    is_needed=lambda: is_at_least("torch", 2, 6),
)

WHOLE_FILES = Patch(
    "whole-files",
    RESULTS,
    "A killed run leaves an incomplete checkpoint_last.pt or checkpoint_best.pt, and a full disk leaves a "
    "damaged checkpoint that looks complete.",
)


@CHECKPOINT_CLASSES.at_import
def _allow_checkpoint_classes() -> None:
    """Allow torch.load with ``weights_only`` to unpickle the NumPy and argparse classes in checkpoints."""
    allowed: List[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # The dtype classes, such as numpy.dtypes.Float64DType.
    allowed += {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    constructors: List[Any] = [x.__reduce__()[0] for x in (numpy.zeros(0), numpy.float64())]
    # NumPy 2 renamed a module, and a file may contain either name.
    for function in constructors:
        allowed += [(function, f"numpy.{name}.multiarray.{function.__name__}") for name in ("core", "_core")]
    torch.serialization.add_safe_globals(allowed)


@CHECKPOINT_CLASSES.replaces("fairseq.distributed.utils:_broadcast_object_slow")
def _broadcast_object(broadcast: Function, obj: Any, src_rank: int, group: Any, dist_device: Any) -> Any:
    """Replacement for ``_broadcast_object_slow`` that calls ``torch.distributed.broadcast_object_list``.

    Unpickling the object is safe, because the sender is a process of this run.
    """
    if not isinstance(group, torch.distributed.ProcessGroup):  # a process group of TPUs
        return broadcast(obj, src_rank, group, dist_device)
    objects = [obj]
    torch.distributed.broadcast_object_list(objects, src=src_rank, group=group, device=dist_device)
    return objects[0]


@WHOLE_FILES.replaces("fairseq.checkpoint_utils:_torch_persistent_save")
def _write_once(save: Function, obj: Any, f: Any) -> Any:
    """Replacement for ``_torch_persistent_save`` that writes a checkpoint in a single attempt.

    fairseq makes up to three attempts, each of which appends to the bytes of the failed attempt.
    """
    if isinstance(f, str):
        return save(obj, f)
    name = str(getattr(f, "name", ""))
    try:
        torch.save(obj, f)
        f.flush()
    except (OSError, RuntimeError) as error:  # torch wraps an OSError of the file
        cause = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, OSError)), None)
        if name.endswith(".tmp"):
            Path(name).unlink()
        if cause is None:
            raise
        raise InputError(
            f"cannot write {name[: -len('.tmp')] if name.endswith('.tmp') else name}: {cause.strerror}. "
            "Earlier checkpoints are unchanged"
        ) from error


@WHOLE_FILES.replaces("fairseq.file_io:PathManager.copy")
def _copy_whole(copy: Function, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Replacement for fairseq's ``PathManager.copy`` that copies a file atomically.

    The copy is written under a temporary name and renamed when it is complete.
    """
    from fairseq.file_io import PathManager

    if not (overwrite and PathManager.supports_rename(dst_path)):
        return copy(src_path, dst_path, overwrite)
    temporary = f"{dst_path}.tmp"
    try:
        result = copy(src_path, temporary, overwrite=True)
        os.replace(temporary, dst_path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return result
