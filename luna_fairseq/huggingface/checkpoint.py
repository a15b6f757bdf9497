"""A checkpoint of this package with its task and what was recorded in it."""

from pathlib import Path
from typing import Any, Dict, NamedTuple

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError


class Checkpoint(NamedTuple):
    """Attributes:
    model: fairseq's, in float32 and evaluation mode.
    task: fairseq's, with its dictionaries.
    state: everything in the file but the parameters.
    """

    model: Any
    task: Any
    state: Dict[str, Any]


def load(path: Path, data: Path) -> Checkpoint:
    """The model in ``path`` with the dictionaries in the folder ``data``, its classification heads too.

    Raises:
        InputError: a file is missing, or the dictionaries are others than the checkpoint's
    """
    if not data.is_dir():
        raise InputError(f"--data {data} does not exist")
    overrides = {"data": str(data.absolute()), "load_checkpoint_heads": True}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    for name in ("model", "last_optimizer_state"):
        state.pop(name, None)
    return Checkpoint(models[0].float().eval(), task, state)
