"""A run that goes on from the newest whole checkpoint."""

import logging
import re
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import torch

from luna_fairseq.engine.checkpoints import damage
from luna_fairseq.engine.mend import Mend

logger = logging.getLogger(__name__)

# fairseq writes checkpoint7.pt, checkpoint_2_500.pt, checkpoint_best.pt, checkpoint.best_bleu_27.3.pt.
_NAME = r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+){suffix}\.pt"


NEWEST_CHECKPOINT = Mend(
    "newest-checkpoint",
    what="looks at the newest checkpoint before a run resumes by itself, and goes on from the newest intact "
    "one",
    why="it looks at checkpoint_last.pt only, which a killed run leaves missing, half or older than the "
    "newest save. (--restore-file, --no-last-checkpoints and sharded checkpoints stay as they are)",
)


@NEWEST_CHECKPOINT.around("fairseq.checkpoint_utils:load_checkpoint")
def _load_the_newest(load_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, **kwargs: Any) -> Any:
    suffix = cfg.checkpoint_suffix or ""
    resumes = cfg.restore_file == "checkpoint_last.pt" and not cfg.no_last_checkpoints
    if resumes and trainer.checkpoint_suffix == suffix:
        if trainer.data_parallel_rank == 0:
            provide_last_checkpoint(Path(cfg.save_dir), suffix, cfg.finetune_from_model)
        if trainer.data_parallel_world_size > 1:
            torch.distributed.barrier(trainer.data_parallel_process_group)
    return load_checkpoint(cfg, trainer, **kwargs)


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
            logger.warning(
                f"{last} {reason}: going on from {path}, the newest intact one ({updates} updates)"
            )
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
    """Finished updates of the run that wrote ``path``; None when one cannot train on from it."""
    if damage(path) is not None:
        return None
    try:
        state = torch.load(str(path), map_location="cpu")
        whole = state["model"] and state["extra_state"]["train_iterator"] and "last_optimizer_state" in state
        return int(state["optimizer_history"][-1]["num_updates"]) if whole else None
    except Exception:  # any content whatever
        return None
