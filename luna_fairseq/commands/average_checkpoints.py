"""``luna-average-checkpoints``: the mean of the parameters of several fairseq checkpoints.

Takes the options of fairseq's ``scripts/average_checkpoints.py``, which ``pip install fairseq`` leaves out.
The result loads wherever one checkpoint does (``fairseq-generate --path``, ``from_pretrained``); it has no
optimizer state.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch

import luna_fairseq.engine  # noqa: F401  (torch.load then accepts the classes that fairseq stores)
from fairseq import checkpoint_utils
from luna_fairseq.checks.dictionaries import stored_fingerprints
from luna_fairseq.checks.model_options import differences, plain_options
from luna_fairseq.checks.same_training import check_identity, stored_identity, stored_options
from luna_fairseq.commands.arguments import positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import archive_is_damaged, why_unreadable
from luna_fairseq.files.writing import replacing
from luna_fairseq.progress import progress

PROGRAM = "luna-average-checkpoints"
EPOCH_FILE = r"checkpoint(\d+)\.pt"
UPDATE_FILE = r"checkpoint_\d+_(\d+)\.pt"


def _average(args: argparse.Namespace) -> None:
    paths = select_checkpoints(
        args.inputs, args.num_epoch_checkpoints, args.num_update_checkpoints, args.checkpoint_upper_bound
    )
    output = check_output(args.output, paths)
    print(f"averaging {len(paths)} checkpoints:", *paths, sep="\n  ")
    save(average_checkpoints(paths, args.force), output)
    print(f"wrote {output}")


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Average the parameters of fairseq checkpoints. All else in the result, such as the "
        "configuration and integer buffers, is that of the last checkpoint; the optimizer state is left out.",
    )
    parser.add_argument(
        "--inputs", required=True, nargs="+", metavar="PATH", help="checkpoint files, or one folder"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="checkpoint to write")
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--num-epoch-checkpoints",
        type=positive,
        metavar="N",
        help="average the last N checkpoint<epoch>.pt of the folder",
    )
    number.add_argument(
        "--num-update-checkpoints",
        type=positive,
        metavar="N",
        help="average the last N checkpoint_<epoch>_<update>.pt of the folder",
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=positive, metavar="M", help="leave out epochs (updates) later than M"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="average checkpoints of different runs, too (their models, tasks and languages must agree)",
    )
    return parser


def select_checkpoints(
    inputs: Sequence[str],
    num_epoch_checkpoints: Optional[int] = None,
    num_update_checkpoints: Optional[int] = None,
    upper_bound: Optional[int] = None,
) -> List[Path]:
    """Files to average, oldest first.

    Args:
        inputs: checkpoint files (the default), or one folder when one of the numbers is given.
        num_epoch_checkpoints: how many ``checkpoint<epoch>.pt`` to take, the latest ones.
        num_update_checkpoints: how many ``checkpoint_<epoch>_<update>.pt`` to take, the latest ones.
        upper_bound: last epoch (or update) that may be taken; default: no bound.

    Raises:
        InputError: a path is missing or named twice, options contradict each other, or files are too few.
    """
    paths = [Path(name) for name in inputs]
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    number = num_epoch_checkpoints or num_update_checkpoints
    if number is None:
        return check_files(paths, upper_bound)
    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError("--num-epoch-checkpoints and --num-update-checkpoints take one folder as --inputs")
    folder = paths[0]
    pattern = EPOCH_FILE if num_epoch_checkpoints else UPDATE_FILE
    found = checkpoint_utils.checkpoint_paths(str(folder), pattern, keep_match=True)[::-1]  # oldest first
    found = [path for path, place in found if upper_bound is None or place <= upper_bound]
    if len(found) < number:
        name = "checkpoint<epoch>.pt" if num_epoch_checkpoints else "checkpoint_<epoch>_<update>.pt"
        bound = f" up to {upper_bound}" if upper_bound is not None else ""
        raise InputError(f"{folder} holds {len(found)} files {name}{bound}, {number} were asked for")
    return [Path(path) for path in found[-number:]]


def check_files(paths: List[Path], upper_bound: Optional[int]) -> List[Path]:
    """``paths``. Raises InputError for a folder, a file given twice, or a bound that does not apply."""
    if upper_bound is not None:
        raise InputError(
            "--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints beside it"
        )
    for path in paths:
        if path.is_dir():
            raise InputError(
                f"{path} is a folder: say which of its files, with --num-epoch-checkpoints "
                "or --num-update-checkpoints"
            )
    real = [path.resolve() for path in paths]
    for index, path in enumerate(paths):
        if real[index] in real[:index]:
            raise InputError(f"{path} is given twice, which would count it twice")
    return paths


def check_output(name: str, inputs: Sequence[Path]) -> Path:
    """Refuse, before the work, a target that could not be written or that is one of the inputs."""
    output = Path(name)
    if output.is_dir():
        raise InputError(f"--output {output} is a folder: name a file, as {output / 'checkpoint_avg.pt'}")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: the folder {output.parent} does not exist")
    if not os.access(output.parent, os.W_OK):
        raise InputError(f"--output {output}: the folder {output.parent} is not writable")
    if output.resolve() in [path.resolve() for path in inputs]:
        raise InputError(f"--output {output} is one of the checkpoints to average")
    return output


def average_checkpoints(paths: Sequence[Path], force: bool = False) -> Dict[str, Any]:
    """Checkpoint whose parameters are the mean over ``paths``.

    Sums are kept in float64, so that the mean of equal values is that value; one sum and one checkpoint are
    in memory at a time. Integer and boolean tensors (counters, masks) are those of the last checkpoint, and
    so is every other entry. Parameters that share storage in the last checkpoint, such as tied embeddings,
    share it in the result.

    Args:
        paths: at least one fairseq checkpoint of one architecture; order matters only for which one is last.
        force: whether they may be of different runs.

    Returns:
        The last checkpoint with averaged ``"model"``, without optimizer state and without EMA weights.

    Raises:
        InputError: a file cannot be read or is no fairseq checkpoint, or the models or their runs differ.
    """
    if not paths:
        raise InputError("there is no checkpoint to average")
    luna_fairseq.register()  # whatever models they are of, their options are known
    sums: Dict[str, torch.Tensor] = {}
    first: Dict[str, Any] = {}
    state: Dict[str, Any] = {}
    for path in progress(paths, "average", "checkpoints"):
        state = {}  # frees the previous one before the next is read
        state = load(path)
        description = describe(state)
        first = first or description
        check_same(first, description, paths[0], path)
        if not force:
            check_run(first["run"], description["run"], paths[0], path)
        accumulate(sums, state["model"])
    model = state["model"]
    owners = {name: storage_key(value) for name, value in model.items() if torch.is_tensor(value)}
    for name in list(sums):
        model[name] = sums.pop(name).div_(len(paths)).to(model[name].dtype)
    share_storage(model, owners)
    return state


def load(path: Path) -> Dict[str, Any]:
    """Checkpoint without what averaging makes meaningless (optimizer state, moving averages)."""
    if archive_is_damaged(path):
        raise InputError(f"{path} is damaged: its checksums are not those of its contents")
    try:
        state = torch.load(str(path), map_location="cpu")
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise InputError(f"{path} {why_unreadable(path, error)}") from None
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict) or not model or not stored_options(state):
        raise InputError(f"{path} is no fairseq checkpoint: it lacks the model or its configuration")
    state.pop("last_optimizer_state", None)
    for entry in ("ema", "ema_fp32_params"):
        state.get("extra_state", {}).pop(entry, None)
    return state


def describe(state: Dict[str, Any]) -> Dict[str, Any]:
    """What checkpoints must agree on: the model's options, dictionaries, the task with its languages, each
    entry's shape and type, and the run."""
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
    """What tells one run from another where a checkpoint does not name its run."""
    groups = state.get("cfg") or {}
    flat = plain_options(state.get("args") or {})
    common, checkpoint = (plain_options(groups.get(name) or flat) for name in ("common", "checkpoint"))
    return {"--seed": common.get("seed"), "--save-dir": checkpoint.get("save_dir")}


def check_same(first: Dict[str, Any], other: Dict[str, Any], first_path: Path, path: Path) -> None:
    """Raise InputError unless two checkpoints are of one model: options, task, names and shapes."""
    found = differences(first["options"], other["options"])
    stored = first["dictionaries"], other["dictionaries"]
    shared = stored[0].keys() & stored[1].keys()
    found += [(f"{name} dictionary", *(one[name] for one in stored)) for name in sorted(shared)]
    for name, ours, theirs in found:
        if ours != theirs:
            raise InputError(
                f"{path} is of another architecture or other data: {name} is {theirs}, "
                f"in {first_path} it is {ours}"
            )
    check_identity(first_path, first["identity"], other["identity"])
    for name in list(first["entries"]) + list(other["entries"]):
        ours, theirs = first["entries"].get(name), other["entries"].get(name)
        if theirs is None:
            raise InputError(f"{path} has no parameter {name}, which {first_path} has")
        if ours is None:
            raise InputError(f"{path} has a parameter {name}, which {first_path} has not")
        if ours != theirs:
            raise InputError(f"{path}: parameter {name} is {theirs}, in {first_path} it is {ours}")


def check_run(first: Dict[str, Any], other: Dict[str, Any], first_path: Path, path: Path) -> None:
    """Raise InputError unless two checkpoints are of one training, or do not say of which."""
    names = [name for name in first if first[name] is not None and other[name] is not None]
    # A run that went on in another folder is still that run.
    names = ["run"] if "run" in names else names
    for name in names:
        if first[name] != other[name]:
            raise InputError(
                f"{path} is of another training than {first_path} ({name} {other[name]}, not {first[name]}): "
                "a mean of unrelated weights is no model; give --force where both began from the same weights"
            )


def accumulate(sums: Dict[str, torch.Tensor], model: Dict[str, Any]) -> None:
    """Add the parameters of ``model`` to ``sums``, in float64."""
    for name, value in model.items():
        if not torch.is_tensor(value) or not (value.is_floating_point() or value.is_complex()):
            continue
        if name in sums:
            sums[name] += value
        else:
            sums[name] = value.to(torch.promote_types(value.dtype, torch.float64), copy=True)


def storage_key(value: torch.Tensor) -> Any:
    """Equal for tensors that are one in memory."""
    return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()


def share_storage(model: Dict[str, Any], owners: Dict[str, Any]) -> None:
    """Let entries that were one tensor be one again, where they agree (earlier files may differ)."""
    first: Dict[Any, torch.Tensor] = {}
    for name, key in owners.items():
        shared = first.setdefault(key, model[name])
        if shared is not model[name] and torch.equal(shared, model[name]):
            model[name] = shared


def save(state: Dict[str, Any], output: Path) -> None:
    """Write beside the target and rename, so that a reader never meets half a file."""
    try:
        with replacing(output) as temporary:
            torch.save(state, str(temporary))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise InputError(f"cannot write {output}: {str(error).splitlines()[0]}") from None


main = console_script(PROGRAM, build_parser, lambda args: _average(args))


if __name__ == "__main__":
    sys.exit(main())
