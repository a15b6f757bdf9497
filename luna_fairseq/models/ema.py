"""Functions that load the moving average of the weights, which ``fairseq-train --store-ema`` stores."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator

import torch

from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import replacing

# Entries of a checkpoint's "extra_state" that hold averages.
AVERAGES = ("ema", "ema_fp32_params")


def load_ema(path: Path) -> Dict[str, Any]:
    """Load a checkpoint with its averaged weights in place of the trained weights.

    The state of the optimizer is dropped.

    Args:
        path: a checkpoint of ``fairseq-train --store-ema``.

    Returns:
        Contents of a checkpoint, for ``torch.save``.

    Raises:
        InputError: The checkpoint has no averaged weights.
    """
    try:
        state: Dict[str, Any] = checkpoint_utils.load_ema_from_checkpoint(str(path))
    except KeyError as error:
        raise InputError(
            f"{path} has no averaged weights: train with --store-ema, or remove --ema"
        ) from error
    state.pop("last_optimizer_state", None)
    for name in AVERAGES:
        state["extra_state"].pop(name, None)
    return state


def write_ema(path: Path, to: Path) -> None:
    """Write a copy of a checkpoint that has the averaged weights, see :func:`load_ema`.

    Args:
        path: a checkpoint of ``fairseq-train --store-ema``.
        to: file to write.

    Raises:
        InputError: The checkpoint has no averaged weights.
    """
    state = load_ema(path)
    with replacing(to) as temporary:
        torch.save(state, str(temporary))


@contextmanager
def ema_checkpoint(path: Path, is_wanted: bool = True) -> Iterator[Path]:
    """Context manager that yields a temporary checkpoint with the averaged weights of ``path``.

    Args:
        path: a checkpoint of ``fairseq-train --store-ema``.
        is_wanted: if False, ``path`` itself is yielded (default: True).

    Raises:
        InputError: The checkpoint has no averaged weights.
    """
    if not is_wanted:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        write_ema(path, Path(folder) / path.name)
        yield Path(folder) / path.name
