"""Functions that average the parameters of several fairseq checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

import torch

import luna_fairseq.engine  # noqa: F401  (torch.load then accepts the classes that fairseq stores)
from luna_fairseq.checks.model_options import find_differences, plain_options
from luna_fairseq.checks.same_training import (
    check_identity,
    stored_fingerprints,
    stored_identity,
    stored_options,
)
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import explain_unreadable, is_damaged_archive
from luna_fairseq.models.ema import AVERAGES, load_ema
from luna_fairseq.progress import progress


def average_checkpoints(paths: Sequence[Path], force: bool = False, ema: bool = False) -> Dict[str, Any]:
    """Average the parameters of several checkpoints, and return the contents of the averaged checkpoint.

    Raise InputError if the checkpoints are from different models or, without ``force``, known to be from
    different training runs. With ``ema``, the moving averages stored by ``--store-ema`` are used in place of
    the parameters.

    Sums are computed in float64, so that the mean of equal values of lower precision is exactly that value.
    Only the sums and one checkpoint are in memory at a time. Tied parameters of the last checkpoint, such as
    embeddings, stay tied. All other contents, including integer and boolean tensors, are from the last
    checkpoint, without its optimizer state and moving averages. The validation loss is kept only for a single
    checkpoint without ``ema``.
    """
    if not paths:
        raise InputError("there is no checkpoint to average")
    # Registers the models of this package, whose options are compared.
    luna_fairseq.register()
    sums: Dict[str, torch.Tensor] = {}
    first: Dict[str, Any] = {}
    state: Dict[str, Any] = {}
    for path in progress(paths, "average", "checkpoints"):
        # Free the previous checkpoint before the next one is loaded.
        state = {}
        state = load_checkpoint(path, ema)
        description = describe_checkpoint(state)
        first = first or description
        check_same_model(first, description, paths[0], path)
        if not force:
            check_run(first["run"], description["run"], paths[0], path)
        for name, value in state["model"].items():
            if torch.is_tensor(value) and (value.is_floating_point() or value.is_complex()):
                wide = torch.promote_types(value.dtype, torch.float64)
                sums[name] = sums[name].add_(value) if name in sums else value.to(wide, copy=True)
    model = state["model"]
    # Tensors that share their storage have equal keys.
    storage_keys = {
        name: (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        for name, value in model.items()
        if torch.is_tensor(value)
    }
    for name in list(sums):
        model[name] = sums.pop(name).div_(len(paths)).to(model[name].dtype)
    share_storage(model, storage_keys)
    if len(paths) > 1:
        (state.get("extra_state") or {}).pop("val_loss", None)  # that of the last checkpoint
    return state


def load_checkpoint(path: Path, ema: bool = False) -> Dict[str, Any]:
    """Load a fairseq checkpoint, without its optimizer state and moving averages.

    With ``ema``, the moving averages replace the weights.
    """
    if is_damaged_archive(path):
        raise InputError(f"{path} is damaged: its checksums do not match its contents")
    try:
        state = load_ema(path) if ema else torch.load(str(path), map_location="cpu")
    except InputError:
        raise
    except Exception as error:  # the type depends on where the file is damaged
        raise InputError(f"{path} {explain_unreadable(path, error)}") from None
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict) or not model or not stored_options(state):
        raise InputError(f"{path} is not a fairseq checkpoint: it lacks the model or its configuration")
    state.pop("last_optimizer_state", None)
    for entry in AVERAGES:
        state.get("extra_state", {}).pop(entry, None)
    return state


def describe_checkpoint(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return the properties of a checkpoint that are compared before averaging.

    The properties are "options" of the model, "dictionaries" (fingerprints), "entries" (shape and type of
    each parameter), "run" (name, seed and folder) and "identity" (task and languages).
    """
    entries = {
        name: f"{tuple(value.shape)} {value.dtype}" if torch.is_tensor(value) else type(value).__name__
        for name, value in state["model"].items()
    }
    identity = stored_identity(state)
    return {
        "options": stored_options(state),
        "dictionaries": stored_fingerprints(state) or {},
        "entries": entries,
        "run": {"run": identity.pop("run", None), **run_settings(state)},
        "identity": identity,
    }


def run_settings(state: Dict[str, Any]) -> Dict[str, Any]:
    """Return ``{"--seed": ..., "--save-dir": ...}`` of a checkpoint's run. Unknown values are None."""
    groups = state.get("cfg") or {}
    flat = plain_options(state.get("args") or {})
    common, checkpoint = (plain_options(groups.get(name) or flat) for name in ("common", "checkpoint"))
    return {"--seed": common.get("seed"), "--save-dir": checkpoint.get("save_dir")}


def check_same_model(first: Dict[str, Any], other: Dict[str, Any], first_path: Path, path: Path) -> None:
    """Raise InputError if the architecture, task, dictionaries, or parameter names, shapes or types differ.

    ``first`` and ``other`` are properties of two checkpoints, from :func:`describe_checkpoint`.
    """
    changes = find_differences(first["options"], other["options"])
    stored = first["dictionaries"], other["dictionaries"]
    shared = stored[0].keys() & stored[1].keys()
    changes += [(f"{name} dictionary", stored[0][name], stored[1][name]) for name in sorted(shared)]
    for name, first_value, value in changes:
        if first_value != value:
            raise InputError(
                f"{path} has another architecture or other data than {first_path}: {name} is {value}, not "
                f"{first_value}"
            )
    check_identity(first_path, first["identity"], other["identity"])
    for name in {**first["entries"], **other["entries"]}:
        first_entry, entry = first["entries"].get(name), other["entries"].get(name)
        if entry is None:
            raise InputError(f"{path} has no parameter {name}, which {first_path} has")
        if first_entry is None:
            raise InputError(f"{path} has a parameter {name}, which {first_path} does not have")
        if first_entry != entry:
            raise InputError(f"{path}: parameter {name} is {entry}, but {first_entry} in {first_path}")


def check_run(first: Dict[str, Any], other: Dict[str, Any], first_path: Path, path: Path) -> None:
    """Raise InputError if the settings of two checkpoints show that they belong to different training runs.

    ``first`` and ``other`` hold the random name, seed and folder of each run. If both have a name, only the
    names are compared. Otherwise, the seeds and folders are compared if they are not None.
    """
    names = [name for name in first if first[name] is not None and other[name] is not None]
    # If both checkpoints name their run, the folder is not compared, because a run may be resumed elsewhere.
    for name in ["run"] if "run" in names else names:
        if first[name] != other[name]:
            raise InputError(
                f"{path} and {first_path} belong to different runs ({name} {other[name]} and {first[name]}), "
                "and the mean of unrelated weights is useless. Use --force if both started from the same "
                "weights"
            )


def share_storage(model: Dict[str, Any], storage_keys: Dict[str, Any]) -> None:
    """Restore the shared storage of averaged tensors, such as tied embeddings, in place.

    ``storage_keys`` maps each tensor name to a key, equal for tensors that shared storage before averaging.
    Tensors whose averages differ remain separate.
    """
    first: Dict[Any, torch.Tensor] = {}
    for name, key in storage_keys.items():
        shared = first.setdefault(key, model[name])
        if shared is not model[name] and torch.equal(shared, model[name]):
            model[name] = shared
