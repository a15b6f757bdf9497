"""Checkpoints that are whole or absent, and a run that goes on from the newest whole one.

fairseq writes the first file of each save under a temporary name, but copies ``checkpoint_last.pt`` and
``checkpoint_best.pt`` from it in place, and on resuming looks at ``checkpoint_last.pt`` only. A run killed during the
copy could not go on although an intact file lies beside the half one.
"""

import functools
import logging
import os
import re
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import torch

from luna_fairseq.engine.compat import damage

logger = logging.getLogger(__name__)

# What fairseq writes during training: checkpoint7.pt, checkpoint_2_500.pt, checkpoint_best.pt, checkpoint.best_bleu_...
_NAME = r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+){suffix}\.pt"


def copy_checkpoints_whole() -> None:
    """Have fairseq copy a file under a temporary name and rename it, so that the target is old or new, never half."""
    from fairseq.file_io import PathManager

    copy = PathManager.copy
    if not hasattr(copy, "mended"):
        PathManager.copy = staticmethod(_whole_copy(copy, PathManager))


def _whole_copy(copy: Callable[..., Any], path_manager: Any) -> Callable[..., Any]:
    @functools.wraps(copy)
    def wrapped(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not (overwrite and path_manager.supports_rename(dst_path)):
            return copy(src_path, dst_path, overwrite)
        temporary = f"{dst_path}.tmp"
        done = copy(src_path, temporary, overwrite=True)
        os.replace(temporary, dst_path)
        return done

    wrapped.mended = True  # type: ignore[attr-defined]
    return wrapped


def go_on_from_the_newest() -> None:
    """Have fairseq-train look at the newest checkpoint before it resumes, and go on from the newest intact one.

    That concerns a run that resumes by itself, from ``checkpoint_last.pt``: not --restore-file, --no-last-checkpoints
    or sharded checkpoints.
    """
    from fairseq import checkpoint_utils

    load = checkpoint_utils.load_checkpoint
    if hasattr(load, "mended"):
        return

    @functools.wraps(load)
    def wrapped(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        suffix = cfg.checkpoint_suffix or ""
        resumes = cfg.restore_file == "checkpoint_last.pt" and not cfg.no_last_checkpoints
        if resumes and trainer.checkpoint_suffix == suffix:
            if trainer.data_parallel_rank == 0:
                provide_last_checkpoint(Path(cfg.save_dir), suffix, cfg.finetune_from_model)
            if trainer.data_parallel_world_size > 1:
                torch.distributed.barrier(trainer.data_parallel_process_group)
        return load(cfg, trainer, **kwargs)

    wrapped.mended = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint = wrapped


def provide_last_checkpoint(folder: Path, suffix: str = "", excluded: Optional[str] = None) -> None:
    """Make ``checkpoint_last.pt`` the newest intact checkpoint of ``folder``, and say so when it was not.

    It is left as it is when it is intact and no newer file has more updates, and when no file is intact.

    Args:
        folder: where the run writes its checkpoints.
        suffix: of the files' names, before ".pt".
        excluded: a file that is no checkpoint of this run.
    """
    from fairseq.file_io import PathManager

    last = folder / f"checkpoint_last{suffix}.pt"
    fault = damage(last) if last.is_file() else "is missing"
    newer_than = last.stat().st_mtime_ns if fault is None else -1
    for path in _newest_first(folder, suffix):
        if path.stat().st_mtime_ns <= newer_than:
            return
        if excluded is not None and path.resolve() == Path(excluded).resolve():
            continue
        updates = _updates(path)
        if updates is None:
            logger.warning(f"{path} is no intact checkpoint of a run: passed over")
        elif fault is not None or updates > (_updates(last) or 0):
            reason = fault or "is older"
            logger.warning(f"{last} {reason}: going on from {path}, the newest intact one ({updates} updates)")
            PathManager.copy(str(path), str(last), overwrite=True)
            return


def _newest_first(folder: Path, suffix: str) -> Iterator[Path]:
    name = re.compile(_NAME.format(suffix=re.escape(suffix)))
    found = [path for path in folder.glob("checkpoint*.pt") if name.fullmatch(path.name)]
    # Of files of one age, such as a checkpoint and its copy, the one with more updates in its name.
    return iter(sorted(found, key=lambda path: (path.stat().st_mtime_ns, _numbers(path)), reverse=True))


def _numbers(path: Path) -> Any:
    return [int(number) for number in re.findall(r"\d+", path.stem)]


def _updates(path: Path) -> Optional[int]:
    """Finished updates of the run that wrote ``path``; None when it is damaged or one cannot train on from it."""
    if damage(path) is not None:
        return None
    try:
        state = torch.load(str(path), map_location="cpu")
        whole = state["model"] and state["extra_state"]["train_iterator"] and "last_optimizer_state" in state
        return int(state["optimizer_history"][-1]["num_updates"]) if whole else None
    except Exception:  # any content whatever
        return None
