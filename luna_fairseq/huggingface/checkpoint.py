"""Loading of a fairseq checkpoint for export."""

from pathlib import Path
from typing import Any, Dict, NamedTuple

import luna_fairseq.models  # noqa: F401  (registers the classes that a checkpoint may refer to)
from fairseq import checkpoint_utils
from luna_fairseq.errors import InputError


class Checkpoint(NamedTuple):
    """fairseq model loaded for export, in float32 and evaluation mode, with its task.

    ``state`` holds the contents of the checkpoint without the weights and the optimizer state.
    """

    model: Any
    task: Any
    state: Dict[str, Any]


def load(path: Path, data: Path) -> Checkpoint:
    """Load a fairseq checkpoint with its classification heads. ``data`` is the folder of its dictionaries."""
    if not data.is_dir():
        raise InputError(f"--data {data} does not exist. Give the folder of the model's dictionaries.")
    overrides = {"data": str(data.absolute()), "load_checkpoint_heads": True}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides=overrides)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    for name in ("model", "last_optimizer_state"):
        state.pop(name, None)
    return Checkpoint(models[0].float().eval(), task, state)
