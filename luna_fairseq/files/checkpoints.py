"""Functions that detect damaged checkpoints, and find an intact one to resume training from."""

import errno
import logging
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, List, Mapping, Optional

import torch

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import replacing

logger = logging.getLogger(__name__)

# Names of fairseq: checkpoint7.pt, checkpoint_2_500.pt, checkpoint_best.pt, checkpoint.best_bleu_27.3.pt.
_NAME = r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+){suffix}\.pt"


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Save a checkpoint atomically with ``torch.save``. Raise InputError with the reason if writing fails."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            writer = _Writer(file)
            torch.save(state, writer)
            if writer.error is not None:
                raise writer.error
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot write {path}: {explain_unwritable(error)}") from error


class _Writer:
    """File wrapper for ``torch.save`` that stores the first error of a write in place of raising it.

    torch 1.13 aborts the process if ``write`` raises an exception.
    """

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is closed."""


def explain_unwritable(error: BaseException) -> str:
    """Return the reason why ``torch.save`` failed, such as "No space left on device"."""
    causes = (error, error.__cause__, error.__context__)
    reasons = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return reasons[0] if reasons else str(error).splitlines()[0]


def is_damaged_archive(path: Path) -> Optional[bool]:
    """Return True if a zip archive, such as a torch checkpoint, is damaged, and False if it is intact.

    The result is None if the file is not a zip archive.
    """
    try:
        if not zipfile.is_zipfile(str(path)):
            return None
        with zipfile.ZipFile(str(path)) as archive:
            return archive.testzip() is not None
    except Exception:  # a damaged file can raise any type
        return True


def describe_damage(path: Path) -> Optional[str]:
    """Return a phrase that describes a checkpoint's damage, such as "is damaged", or None if it is intact."""
    is_damaged = is_damaged_archive(path)
    if is_damaged is not None:
        return "is damaged" if is_damaged else None
    try:  # torch before 1.6 did not write zip archives
        torch.load(str(path), map_location="cpu")
    except Exception:
        return "is truncated or not a checkpoint"
    return None


def explain_unreadable(path: Path, error: Exception) -> str:
    """Return a phrase that explains why ``torch.load`` could not load a file.

    Unlike ``error``, raised by ``torch.load``, the phrase does not suggest the unsafe ``weights_only=False``.
    """
    if is_damaged_archive(path) is not False:
        return "cannot be read, because it is truncated or not a checkpoint"
    match = re.search(r"(?:GLOBAL|function|class) ([\w.]+\.\w+)", str(error))
    return (
        f"contains {match.group(1) if match else 'an unknown class'}, which torch.load refuses. If you trust "
        "the file, allow the class by torch.serialization.add_safe_globals"
    )


def explain_no_checkpoint(path: str) -> Optional[str]:
    """Return a phrase that explains why a file is not a fairseq checkpoint.

    The result is None if the file is a checkpoint or cannot be opened.
    """
    try:
        state = torch.load(path, map_location="cpu")
    except Exception as error:  # a damaged file can raise any type
        # For some truncated files, torch raises an OSError with EINVAL.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            return None
        return explain_unreadable(Path(path), error)
    if not isinstance(state, dict) or "model" not in state or not {"args", "cfg"}.intersection(state):
        return "is not a fairseq checkpoint, because it has no model with a configuration"
    return None


def advise_intact(path: Path) -> str:
    """Return a hint for an error message: the newest intact checkpoint in the folder of ``path``, if any."""
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime, reverse=True)
    for other in others:
        if other.name != path.name and describe_damage(other) is None:
            return (
                f"; the newest intact checkpoint in the folder is {other}. Resume training with "
                f"--restore-file {other}, or generate with --path {other}"
            )
    return "; the folder has no intact checkpoint"


def find_intact(folder: Path, suffix: str = "") -> Optional[Path]:
    """Find the newest intact checkpoint to resume from if ``checkpoint_last.pt`` is damaged.

    Return None if ``checkpoint_last.pt`` is intact or missing, or if no other checkpoint is intact. In the
    first two cases, log a warning if a newer checkpoint has more updates. With ``suffix``, all names end in
    ``{suffix}.pt``. Raises InputError if ``checkpoint_last.pt`` is a folder.
    """
    last = folder / f"checkpoint_last{suffix}.pt"
    exists = last.is_file()
    if last.exists() and not exists:
        raise InputError(f"{last} is a folder, but should be a checkpoint. Remove the folder.")
    fault = describe_damage(last) if exists else None
    last_updates = count_updates(last) if exists and fault is None else None
    for path in list_newest_first(folder, suffix):
        if exists and fault is None and _recency(path)[0] <= _recency(last)[0]:
            return None
        updates = count_updates(path)
        if updates is None:
            logger.warning(f"{path} is not an intact checkpoint and is skipped")
        elif fault is not None:
            logger.warning(
                f"{last} {fault}. Training resumes from the newest intact checkpoint, {path} ({updates} "
                "updates)"
            )
            return path
        elif updates > (last_updates or 0):
            state = f"has {last_updates} updates" if exists else "is missing"
            logger.warning(
                f"{last} {state}, but {path} has {updates} updates. To resume from that checkpoint, use "
                f"--restore-file {path}"
            )
            return None
    return None


def list_newest_first(folder: Path, suffix: str = "") -> List[Path]:
    """Return the paths of a folder's checkpoints except ``checkpoint_last.pt``, the newest one first."""
    name = re.compile(_NAME.format(suffix=re.escape(suffix)))
    found = [path for path in folder.glob("checkpoint*.pt") if name.fullmatch(path.name)]
    return sorted(found, key=_recency, reverse=True)


def _recency(path: Path) -> Any:
    """Return a sort key for a checkpoint path: its modification time, then the numbers in its file name."""
    return path.stat().st_mtime_ns, [int(number) for number in re.findall(r"\d+", path.stem)]


def count_updates(path: Path) -> Optional[int]:
    """Return the number of updates after which a checkpoint was saved.

    The result is None if training cannot be resumed from the file.
    """
    if describe_damage(path) is not None:
        return None
    try:
        state = torch.load(str(path), map_location="cpu")
        is_complete = (
            state["model"] and state["extra_state"]["train_iterator"] and "last_optimizer_state" in state
        )
        return int(state["optimizer_history"][-1]["num_updates"]) if is_complete else None
    except Exception:  # unexpected content can raise any type
        return None
