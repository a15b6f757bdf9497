"""Checks of checkpoint files: damage, its explanation, and the intact checkpoint to continue from."""

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
    """Verify the checksums of a checkpoint, which torch writes as a zip archive.

    Args:
        path: path of the checkpoint.

    Returns:
        True if the archive is damaged, False if it is intact, and None if the file is not a zip archive.
    """
    try:
        if not zipfile.is_zipfile(str(path)):
            return None
        with zipfile.ZipFile(str(path)) as archive:
            return archive.testzip() is not None
    except Exception:  # a damaged file raises many types
        return True


def damage(path: Path) -> Optional[str]:
    """Describe the damage of a checkpoint.

    Args:
        path: path of the checkpoint.

    Returns:
        Words that continue a sentence after the name of the file, such as "is damaged". None if the
        checkpoint is intact.
    """
    is_damaged = archive_is_damaged(path)
    if is_damaged is not None:
        return "is damaged" if is_damaged else None
    try:  # before version 1.6, torch did not write zip archives
        torch.load(str(path), map_location="cpu")
    except Exception:
        return "is truncated, or no checkpoint"
    return None


def why_unreadable(path: Path, error: Exception) -> str:
    """Explain why torch.load failed.

    The message of torch is not repeated, because it advises to switch off the check of the content.

    Args:
        path: path of the file.
        error: exception that torch.load raised.

    Returns:
        Words that continue a sentence after the name of the file.
    """
    if archive_is_damaged(path) is not False:
        return "cannot be read: it is truncated, or no checkpoint"
    found = re.search(r"(?:GLOBAL|function|class) ([\w.]+\.\w+)", str(error))
    return (
        f"holds what torch.load refuses: {found.group(1) if found else 'a class that it does not know'}. If "
        "you trust the file, allow it by torch.serialization.add_safe_globals"
    )


def why_no_checkpoint(path: str) -> Optional[str]:
    """Explain why a file is not a checkpoint of fairseq.

    Args:
        path: path of the file.

    Returns:
        Words that continue a sentence after the name of the file. None if the file is a checkpoint or cannot
        be opened.
    """
    try:
        state = torch.load(path, map_location="cpu")
    except OSError:
        return None
    except Exception as error:  # a damaged file raises many types
        return why_unreadable(Path(path), error)
    if not isinstance(state, dict) or "model" not in state or not {"args", "cfg"}.intersection(state):
        return "is no fairseq checkpoint: there is no model with its configuration in it"
    return None


def intact_neighbour(path: Path) -> str:
    """Advise which intact checkpoint to use instead of a damaged one.

    Args:
        path: path of the damaged checkpoint.

    Returns:
        Words that continue a sentence about the damage.
    """
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime, reverse=True)
    for other in others:
        if other.name != path.name and damage(other) is None:
            return f"; the newest intact one beside it is {other}: go on with --restore-file (to generate: " \
                   f"--path) {other}"  # fmt: skip
    return "; there is no intact checkpoint beside it"


def find_intact(folder: Path, suffix: str = "") -> Optional[Path]:
    """Find the checkpoint to continue from if the last checkpoint is damaged.

    If the last checkpoint is intact or missing, the choice is the user's: an intact file may have been put
    there on purpose, and without one the training begins from the start. A warning then names a newer
    checkpoint if there is one.

    Args:
        folder: folder of the checkpoints of the run.
        suffix: suffix of the file names before ".pt". Empty by default.

    Returns:
        The newest intact checkpoint, or None if the last checkpoint is intact or missing, or if no
        checkpoint is intact.

    Raises:
        InputError: The last checkpoint is a folder.
    """
    last = folder / f"checkpoint_last{suffix}.pt"
    exists = last.is_file()
    if last.exists() and not exists:
        raise InputError(f"{last} is a folder, where the checkpoint to go on from should be: remove it")
    fault = damage(last) if exists else None
    last_updates = updates_of(last) if exists and fault is None else None
    name = re.compile(_NAME.format(suffix=re.escape(suffix)))
    found = [path for path in folder.glob("checkpoint*.pt") if name.fullmatch(path.name)]
    for path in sorted(found, key=_age, reverse=True):
        if exists and fault is None and _age(path)[0] <= _age(last)[0]:
            return None
        updates = updates_of(path)
        if updates is None:
            logger.warning(f"{path} is no intact checkpoint of a run: passed over")
        elif fault is not None:
            logger.warning(f"{last} {fault}: going on from {path}, the newest intact one ({updates} updates)")
            return path
        elif updates > (last_updates or 0):
            state = f"has {last_updates} updates" if exists else "is missing"
            logger.warning(
                f"{last} {state}, {path} has {updates} updates: --restore-file {path} would go on from it"
            )
            return None
    return None


def _age(path: Path) -> Any:
    """Return a sort key: the time of change, then the numbers in the name.

    A checkpoint and its copy may have the same time. The one with more updates in its name then counts as
    newer.
    """
    return path.stat().st_mtime_ns, [int(number) for number in re.findall(r"\d+", path.stem)]


def updates_of(path: Path) -> Optional[int]:
    """Return the number of updates after which a checkpoint was written.

    Args:
        path: path of the checkpoint.

    Returns:
        The number of updates, or None if training cannot continue from the file.
    """
    if damage(path) is not None:
        return None
    try:
        state = torch.load(str(path), map_location="cpu")
        is_complete = (
            state["model"] and state["extra_state"]["train_iterator"] and "last_optimizer_state" in state
        )
        return int(state["optimizer_history"][-1]["num_updates"]) if is_complete else None
    except Exception:  # other content raises many types
        return None
