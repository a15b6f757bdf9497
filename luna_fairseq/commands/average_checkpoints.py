"""``luna-average-checkpoints``: the mean of the parameters of several fairseq checkpoints.

The parameters are averaged; all else in the result, such as the configuration and integer buffers, is that of
the last checkpoint, and the optimizer state is left out. It loads wherever one checkpoint does
(``fairseq-generate --path``, ``from_pretrained``). The options are those of fairseq's
``scripts/average_checkpoints.py``, which ``pip install fairseq`` leaves out.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch

import luna_fairseq.engine  # noqa: F401  (torch.load then accepts the classes that fairseq stores)
from luna_fairseq.checks.model_options import check_removed_options, differences, plain_options
from luna_fairseq.checks.same_training import (
    check_identity,
    stored_fingerprints,
    stored_identity,
    stored_options,
)
from luna_fairseq.commands.arguments import CommandParser, positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checkpoints import archive_is_damaged, why_unreadable
from luna_fairseq.files.writing import check_writable, replacing
from luna_fairseq.models.ema import STORED, load_ema
from luna_fairseq.progress import progress

PROGRAM = "luna-average-checkpoints"
# What a number counts -> the names of the files, in words and as a pattern of the number and the suffix.
NUMBERED = {
    "epoch": ("checkpoint<epoch>.pt", r"checkpoint(\d+)(|\D.*)\.pt"),
    "update": ("checkpoint_<epoch>_<update>.pt", r"checkpoint_\d+_(\d+)(|\D.*)\.pt"),
}


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("--inputs", "checkpoint files, or one folder", "PATH", required=True, nargs="+")
    parser.path("--output", "checkpoint to write", required=True)
    number = parser.add_mutually_exclusive_group()
    for counted, (names, _) in NUMBERED.items():
        shown = f"average the last N {names} of the folder"
        number.add_argument(f"--num-{counted}-checkpoints", type=positive, metavar="N", help=shown)
    parser.add_argument(
        "--checkpoint-upper-bound", type=positive, metavar="M", help="leave out epochs (updates) later than M"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="average checkpoints of different runs, too (their models, tasks and languages must agree)",
    )
    parser.ema()
    return parser


def _average(args: argparse.Namespace) -> None:
    paths = select_checkpoints(args)
    check_writable(args.output, "--output")
    if args.output.resolve() in [path.resolve() for path in paths]:
        raise InputError(f"--output {args.output} is one of the checkpoints to average")
    print(f"averaging {len(paths)} checkpoints:", *paths, sep="\n  ")
    state = average_checkpoints(paths, args.force, args.ema)
    try:
        with replacing(args.output) as temporary:
            torch.save(state, str(temporary))
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise InputError(f"cannot write {args.output}: {str(error).splitlines()[0]}") from None
    print(f"wrote {args.output}")


def select_checkpoints(args: argparse.Namespace) -> List[Path]:
    """Files to average, oldest first: those given, or the latest of a folder. Raises InputError where a path
    is missing or named twice, options contradict each other, or files are too few."""
    paths, bound = args.inputs, args.checkpoint_upper_bound
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    number = args.num_epoch_checkpoints or args.num_update_checkpoints
    if number is None:
        check_files(paths, bound)
        return paths
    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError("--num-epoch-checkpoints and --num-update-checkpoints take one folder as --inputs")
    names, pattern = NUMBERED["epoch" if args.num_epoch_checkpoints else "update"]
    numbered = find_numbered(paths[0], pattern)
    found = [path for place, path in sorted(numbered.items()) if bound is None or place <= bound]
    if len(found) < number:
        limit = f" up to {bound}" if bound is not None else ""
        raise InputError(f"{paths[0]} holds {len(found)} files {names}{limit}, {number} were asked for")
    return found[-number:]


def find_numbered(folder: Path, pattern: str) -> Dict[int, Path]:
    """Return the checkpoints of a run by their number. Those with a suffix count if there are no others.

    Args:
        folder: folder of the checkpoints.
        pattern: regular expression of a file name with groups for the number and for the suffix.

    Raises:
        InputError: all checkpoints have a suffix, and there are several suffixes.
    """
    by_suffix: Dict[str, Dict[int, Path]] = {}
    for path in folder.iterdir():
        match = re.fullmatch(pattern, path.name)
        if match is not None:
            by_suffix.setdefault(match[2], {})[int(match[1])] = path
    if "" in by_suffix or not by_suffix:
        return by_suffix.get("", {})
    if len(by_suffix) > 1:
        raise InputError(
            f"{folder} holds checkpoints with the suffixes {', '.join(sorted(by_suffix))}: give the files of "
            "one of them as --inputs"
        )
    ((suffix, found),) = by_suffix.items()
    print(f"all checkpoints in {folder} have the suffix {suffix}")
    return found


def check_files(paths: Sequence[Path], bound: Any) -> None:
    """Raise InputError for a folder, a file given twice, or a bound that does not apply."""
    numbers = "--num-epoch-checkpoints or --num-update-checkpoints"
    if bound is not None:
        raise InputError(f"--checkpoint-upper-bound needs {numbers} beside it")
    seen = set()
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder: say which of its files, with {numbers}")
        if path.resolve() in seen:
            raise InputError(f"{path} is given twice, which would count it twice")
        seen.add(path.resolve())


def average_checkpoints(paths: Sequence[Path], force: bool = False, ema: bool = False) -> Dict[str, Any]:
    """Checkpoint whose parameters are the mean over ``paths``.

    Sums are kept in float64, so that the mean of equal values is that value; one sum and one checkpoint are
    in memory at a time. Integer and boolean tensors (counters, masks) are those of the last checkpoint, and
    so is every other entry. Parameters that share storage in the last checkpoint, such as tied embeddings,
    share it in the result.

    Args:
        paths: at least one fairseq checkpoint of one architecture; order matters only for which one is last.
        force: whether they may be of different runs.
        ema: average the weights that ``fairseq-train --store-ema`` averaged (default: False).

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
        state = load(path, ema)
        description = describe(state)
        first = first or description
        check_same(first, description, paths[0], path)
        if not force:
            check_run(first["run"], description["run"], paths[0], path)
        for name, value in state["model"].items():
            if torch.is_tensor(value) and (value.is_floating_point() or value.is_complex()):
                wide = torch.promote_types(value.dtype, torch.float64)
                sums[name] = sums[name].add_(value) if name in sums else value.to(wide, copy=True)
    model = state["model"]
    # Equal for tensors that are one in memory.
    owners = {
        name: (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        for name, value in model.items()
        if torch.is_tensor(value)
    }
    for name in list(sums):
        model[name] = sums.pop(name).div_(len(paths)).to(model[name].dtype)
    share_storage(model, owners)
    return state


def load(path: Path, ema: bool = False) -> Dict[str, Any]:
    """Load a checkpoint without the entries that averaging makes meaningless: optimizer state and EMA.

    With ``ema``, the model's parameters are the EMA weights.
    """
    if archive_is_damaged(path):
        raise InputError(f"{path} is damaged: its checksums are not those of its contents")
    try:
        state = load_ema(path) if ema else torch.load(str(path), map_location="cpu")
    except InputError:
        raise
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        raise InputError(f"{path} {why_unreadable(path, error)}") from None
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict) or not model or not stored_options(state):
        raise InputError(f"{path} is no fairseq checkpoint: it lacks the model or its configuration")
    check_removed_options(path, stored_options(state))
    state.pop("last_optimizer_state", None)
    for entry in STORED:
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
    for name in {**first["entries"], **other["entries"]}:
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
    for name in ["run"] if "run" in names else names:
        if first[name] != other[name]:
            raise InputError(
                f"{path} is of another training than {first_path} ({name} {other[name]}, not {first[name]}): "
                "a mean of unrelated weights is no model; give --force where both began from the same weights"
            )


def share_storage(model: Dict[str, Any], owners: Dict[str, Any]) -> None:
    """Let entries that were one tensor be one again, where they agree (earlier files may differ)."""
    first: Dict[Any, torch.Tensor] = {}
    for name, key in owners.items():
        shared = first.setdefault(key, model[name])
        if shared is not model[name] and torch.equal(shared, model[name]):
            model[name] = shared


main = console_script(PROGRAM, build_parser, _average)


if __name__ == "__main__":
    sys.exit(main())
