"""Length of the training run in a folder, so that a longer run is not evaluated as a shorter one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Sequence

from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options

_LIMITS = {"--max-epoch": "epochs", "--max-update": "updates"}


def check_not_longer(folder: Path, option: str, words: Sequence[str]) -> None:
    """Raise InputError if the run in a folder is longer than --max-epoch or --max-update permits.

    fairseq-train would leave such a run as it is. ``words`` are the arguments of fairseq-train, and
    ``option`` is the option that names the folder, such as "--out", for the error message.
    """
    given = parse_options(words)
    limits = {unit: int(given[name]) for name, unit in _LIMITS.items() if given.get(name, "").isdecimal()}
    if not any(limits.values()):
        return
    reached = _read_length(folder / "checkpoint_last.pt")
    reached["epochs"] = max([reached["epochs"], *find_epochs(folder)])
    for unit, limit in limits.items():
        if 0 < limit < reached[unit]:
            raise InputError(
                f"{folder} has a run of {reached[unit]} {unit}, longer than the {limit} {unit} to train. "
                f"Train {reached[unit]} {unit} or more, or use another {option}."
            )


def find_epochs(folder: Path) -> Dict[int, Path]:
    """Return the checkpoints of whole epochs in a folder, keyed by epoch."""
    paths = folder.iterdir() if folder.is_dir() else ()
    matches = [(re.fullmatch(r"checkpoint(\d+)\.pt", path.name), path) for path in paths]
    return {int(match[1]): path for match, path in matches if match}


def _read_length(path: Path) -> Dict[str, int]:
    """Return the numbers of epochs, including an incomplete one, and updates of a checkpoint.

    They are 0 if the checkpoint is missing or damaged.
    """
    if not path.is_file():
        return {"epochs": 0, "updates": 0}
    # Imported here so that --help does not wait for torch and fairseq.
    import torch

    import luna_fairseq.engine  # noqa: F401  (torch.load then accepts the classes that fairseq stores)

    try:
        state = torch.load(str(path), map_location="cpu")
        place = state["extra_state"]["train_iterator"]
        # Between two epochs, the checkpoint names the next one.
        epochs = int(place["epoch"]) - (not place.get("iterations_in_epoch"))
        return {"epochs": epochs, "updates": int(state["optimizer_history"][-1]["num_updates"])}
    except Exception:  # a damaged file can raise any type
        return {"epochs": 0, "updates": 0}
