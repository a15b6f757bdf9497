"""Checkpoint files: whether one is as it was written, what is wrong with it, which intact one to take."""

import logging
import re
import zipfile
from pathlib import Path
from typing import Any, Optional

import torch

from luna_fairseq.errors import InputError

logger = logging.getLogger(__name__)

# fairseq writes checkpoint7.pt, checkpoint_2_500.pt, checkpoint_best.pt, checkpoint.best_bleu_27.3.pt.
_NAME = r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+){suffix}\.pt"


def archive_is_damaged(path: Path) -> Optional[bool]:
    """Whether ``path`` is not as it was written; None where it is no zip archive, as torch writes them."""
    try:
        if not zipfile.is_zipfile(str(path)):
            return None
        with zipfile.ZipFile(str(path)) as archive:
            return archive.testzip() is not None
    except Exception:  # what a damaged file raises depends on where it is damaged
        return True


def damage(path: Path) -> Optional[str]:
    """What makes ``path`` unreadable, in words that follow its name; None when it is as it was written."""
    damaged = archive_is_damaged(path)
    if damaged is not None:
        return "is damaged" if damaged else None
    try:  # before torch 1.6 a checkpoint was no zip archive
        torch.load(str(path), map_location="cpu")
    except Exception:
        return "is truncated, or no checkpoint"
    return None


def why_unreadable(path: Path, error: Exception) -> str:
    """What is wrong with a file that torch.load raised ``error`` for, in words that follow its name.

    torch's own words are not passed on: they advise to switch its check off.
    """
    if archive_is_damaged(path) is not False:
        return "cannot be read: it is truncated, or no checkpoint"
    found = re.search(r"(?:GLOBAL|function|class) ([\w.]+\.\w+)", str(error))
    return (
        f"holds what torch.load refuses: {found.group(1) if found else 'a class that it does not know'}. If "
        "you trust the file, allow it by torch.serialization.add_safe_globals"
    )


def why_no_checkpoint(path: str) -> Optional[str]:
    """What makes ``path`` no checkpoint, or None when the failure must have another reason."""
    try:
        state = torch.load(path, map_location="cpu")
    except OSError:
        return None
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        return why_unreadable(Path(path), error)
    if not isinstance(state, dict) or "model" not in state or not {"args", "cfg"}.intersection(state):
        return "is no fairseq checkpoint: there is no model with its configuration in it"
    return None


def intact_neighbour(path: Path) -> str:
    """What to go on with instead of ``path``, in words that follow what is wrong with it."""
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime, reverse=True)
    for other in others:
        if other.name != path.name and damage(other) is None:
            return f"; the newest intact one beside it is {other}: go on with --restore-file (to generate: " \
                   f"--path) {other}"  # fmt: skip
    return "; there is no intact checkpoint beside it"


def find_intact(folder: Path, suffix: str = "") -> Optional[Path]:
    """The checkpoint to go on from where the last one is damaged; None where it is intact or missing. Raises
    InputError where the last checkpoint is a folder.

    Says what it takes. A last one that is intact is what somebody may have put there, and none at all begins
    anew: then a newer one is named only.

    Args:
        folder: where the run writes its checkpoints.
        suffix: of the files' names, before ".pt".
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
