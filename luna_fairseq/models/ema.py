"""Load or write a checkpoint with the moving average of its weights (``fairseq-train --store-ema``)."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List

from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import save_checkpoint

# Entries of a checkpoint's "extra_state" that hold averaged weights.
AVERAGES = ("ema", "ema_fp32_params")


def load_ema(path: Path) -> Dict[str, Any]:
    """Load a checkpoint with the moving averages as its weights, and without the optimizer state."""
    try:
        state: Dict[str, Any] = checkpoint_utils.load_ema_from_checkpoint(str(path))
    except KeyError as error:
        raise InputError(
            f"{path} has no averaged weights: train with --store-ema, or remove --ema"
        ) from error
    # With --ema-fp32, the checkpoint also has float32 averages, not rounded to the precision of the model.
    exact = state["extra_state"].get("ema_fp32_params", {})
    state["model"].update((name, exact[name]) for name in state["model"] if name in exact)
    state.pop("last_optimizer_state", None)
    for name in (*AVERAGES, "val_loss"):  # the trained weights were validated
        state["extra_state"].pop(name, None)
    return state


def write_ema(path: Path, to: Path) -> None:
    """Write a copy of a checkpoint to the file ``to``, with moving averages in place of the weights."""
    save_checkpoint(load_ema(path), to)


@contextmanager
def ema_copies(paths: Iterable[Path]) -> Iterator[List[Path]]:
    """Context manager that yields temporary copies of checkpoints, with moving averages as their weights."""
    with tempfile.TemporaryDirectory() as temporary:
        copies = []
        for number, path in enumerate(paths):
            copies.append(Path(temporary) / f"{number}.pt")
            write_ema(path, copies[-1])
        yield copies
