"""Command ``luna-average-checkpoints``: average the parameters of several checkpoints of one training.

The averaged model often translates better than the last checkpoint. The result is a checkpoint that
fairseq-generate and from_pretrained can load. Only the parameters are averaged. The configuration and tensors
of integers are copied from the last checkpoint, and the optimizer state is omitted.

The options are those of fairseq's scripts/average_checkpoints.py, which "pip install fairseq" does not
install.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser, positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_separate, check_writable

PROGRAM = "luna-average-checkpoints"
# File names of numbered checkpoints: a readable form, and a pattern with groups for the number and the
# suffix.
NUMBERED = {
    "epoch": ("checkpoint<epoch>.pt", r"checkpoint(\d+)(|\D.*)\.pt"),
    "update": ("checkpoint_<epoch>_<update>.pt", r"checkpoint_\d+_(\d+)(|\D.*)\.pt"),
}


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    example = (
        "luna-average-checkpoints --inputs checkpoints/run --num-epoch-checkpoints 5 \\\n"
        "      --output checkpoints/run/average.pt"
    )
    parser = CommandParser(PROGRAM, __doc__, example=example)
    inputs = "checkpoint files, or one folder (with --num-epoch-checkpoints or --num-update-checkpoints)"
    parser.path("--inputs", inputs, "PATH", required=True, nargs="+")
    parser.path("--output", "checkpoint to write", required=True)
    group = parser.add_mutually_exclusive_group()
    for unit, (names, _) in NUMBERED.items():
        text = f"average the last N checkpoints in the folder, which are named {names}"
        group.add_argument(f"--num-{unit}-checkpoints", type=positive, metavar="N", help=text)
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=positive,
        metavar="M",
        help="ignore checkpoints after epoch M (with --num-update-checkpoints: after update M)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also average checkpoints of different runs; their models, tasks and languages must agree",
    )
    parser.ema()
    return parser


def _average(args: argparse.Namespace) -> None:
    """Run the command: select the checkpoints, average their parameters, and write the new checkpoint."""
    # Imported here so that --help is fast.
    from luna_fairseq.commands.averaging import average_checkpoints
    from luna_fairseq.files.checkpoints import save_checkpoint

    paths = select_checkpoints(args)
    check_writable(args.output, "--output")
    check_separate(args.output, "--output", paths)
    print(f"averaging {len(paths)} checkpoints:", *paths, sep="\n  ")
    save_checkpoint(average_checkpoints(paths, args.force, args.ema), args.output)
    print(f"wrote {args.output}")


def select_checkpoints(args: argparse.Namespace) -> List[Path]:
    """Return the paths of the checkpoints to average, given the parsed arguments.

    With ``--num-epoch-checkpoints N`` or ``--num-update-checkpoints N``, these are the last N checkpoints in
    the folder ``--inputs``, oldest first. Otherwise, these are the files ``--inputs`` in the given order.
    """
    paths, bound = args.inputs, args.checkpoint_upper_bound
    for path in paths:
        if not path.exists():
            raise InputError(f"--inputs {path} does not exist")
    number = args.num_epoch_checkpoints or args.num_update_checkpoints
    if number is None:
        check_files(paths, bound)
        return paths
    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError("--num-epoch-checkpoints and --num-update-checkpoints need one folder as --inputs")
    names, pattern = NUMBERED["epoch" if args.num_epoch_checkpoints else "update"]
    numbered = find_numbered(paths[0], pattern)
    candidates = [path for count, path in sorted(numbered.items()) if bound is None or count <= bound]
    if len(candidates) < number:
        limit = f" up to {bound}" if bound is not None else ""
        raise InputError(
            f"expected at least {number} files {names}{limit} in {paths[0]}, got {len(candidates)}. Use a "
            "smaller number, or another folder"
        )
    return candidates[-number:]


def find_numbered(folder: Path, pattern: str) -> Dict[int, Path]:
    """Return the checkpoints in a folder whose names match ``pattern``, keyed by epoch or update number.

    The two groups of ``pattern`` are this number and the suffix (``--checkpoint-suffix``). Checkpoints with a
    suffix are returned only if the folder has no others. Raises InputError if these have several suffixes.
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
            f"{folder} has checkpoints with the suffixes {', '.join(sorted(by_suffix))}. List the files with "
            "one suffix as --inputs"
        )
    ((suffix, checkpoints),) = by_suffix.items()
    print(f"all checkpoints in {folder} have the suffix {suffix}")
    return checkpoints


def check_files(paths: Sequence[Path], bound: Optional[int]) -> None:
    """Raise InputError for a folder or duplicate path, or if --checkpoint-upper-bound sets ``bound``."""
    numbers = "--num-epoch-checkpoints or --num-update-checkpoints"
    if bound is not None:
        raise InputError(f"--checkpoint-upper-bound needs {numbers}")
    seen = set()
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder. Select checkpoints in the folder with {numbers}")
        if path.resolve() in seen:
            raise InputError(f"{path} is given twice. Give each checkpoint once")
        seen.add(path.resolve())


main = console_script(PROGRAM, build_parser, _average)


if __name__ == "__main__":
    sys.exit(main())
