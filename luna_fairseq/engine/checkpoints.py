"""Checkpoint files: what torch.load accepts, what a damaged one is called, whole copies."""

import argparse
import os
import re
import zipfile
from pathlib import Path
from typing import Any, List, Optional

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
    core = numpy._core if hasattr(numpy, "_core") else numpy.core
    allowed: List[Any] = [argparse.Namespace, numpy.ndarray, numpy.dtype]
    # What a numpy.dtype is an instance of: numpy.dtypes.Float64DType and its like.
    allowed += {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    # numpy 2 renamed the module; a file may have been written under either.
    for function in (core.multiarray._reconstruct, core.multiarray.scalar):
        allowed += [(function, f"numpy.{name}.multiarray.{function.__name__}") for name in ("core", "_core")]
    torch.serialization.add_safe_globals(allowed)


@CHECKPOINT_CLASSES.around("fairseq.distributed.utils:_broadcast_object_slow")
def _handed_on_within_the_run(
    broadcast: Function, obj: Any, src_rank: int, group: Any, dist_device: Any
) -> Any:
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


def damage(path: Path) -> Optional[str]:
    """What makes ``path`` unreadable, in words that follow its name; None when it is as it was written."""
    if zipfile.is_zipfile(str(path)):
        try:
            with zipfile.ZipFile(str(path)) as archive:
                return None if archive.testzip() is None else "is damaged"
        except (zipfile.BadZipFile, OSError, EOFError):
            return "is damaged"
    try:  # before torch 1.6 a checkpoint was no zip archive
        torch.load(str(path), map_location="cpu")
    except Exception:  # what a damaged file raises depends on where it is damaged
        return "is truncated, or no checkpoint"
    return None


def why_unreadable(path: Path, error: Exception) -> str:
    """What is wrong with a file that torch.load raised ``error`` for, in words that follow its name.

    torch's own words are not passed on: they advise to switch its check off.
    """
    if not zipfile.is_zipfile(str(path)) or damage(path) is not None:
        return "cannot be read: it is truncated, or no checkpoint"
    found = re.search(r"(?:GLOBAL|function|class) ([\w.]+\.\w+)", str(error))
    return (
        f"holds what torch.load refuses: {found.group(1) if found else 'a class that it does not know'}. If "
        "you trust the file, allow it by torch.serialization.add_safe_globals"
    )


def intact_neighbour(path: Path) -> str:
    """What to go on with instead of ``path``, in words that follow what is wrong with it."""
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime, reverse=True)
    for other in others:
        if other.name != path.name and damage(other) is None:
            return f"; the newest intact one beside it is {other}: go on with --restore-file (to generate: " \
                   f"--path) {other}"  # fmt: skip
    return "; there is no intact checkpoint beside it"
