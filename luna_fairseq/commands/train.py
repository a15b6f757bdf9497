"""Command ``luna-train``: train a model with a recipe on the GPUs of this machine.

A recipe is a file with all options of a training run. The command checks RECIPE and DATA, and then runs
fairseq-train. A batch has the size that the recipe states, whatever the number of GPUs, because --update-freq
is chosen accordingly. Training uses --bf16 if the GPU supports it, --fp16 on a V100, and 32 bits elsewhere.

Checkpoints are written to the folder checkpoints/NAME, where NAME is the last part of RECIPE, or to
--save-dir. If you repeat the command, training resumes from the last checkpoint. Options of fairseq-train
override the recipe.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Sequence

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.launch import PRECISIONS, Launch, compute_launch
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum_of_data
from luna_fairseq.files.same_run import check_same_run, parse_options, select_fixed_options

PROGRAM = "luna-train"
# Beginnings of the options of fairseq-train with which a run may change its other options.
_NEW_START = ("--reset-", "--restore-file")
USAGE = "luna-train [--dry-run] RECIPE DATA [fairseq-train options]"


def build_parser() -> CommandParser:
    """Build the parser that prints ``--help``. The command itself receives its arguments unparsed."""
    example = "luna-train bitext/small_anchored data-bin/mine --max-epoch 20"
    parser = CommandParser(PROGRAM, __doc__, usage=USAGE, example=example)
    parser.add_argument("recipe", metavar="RECIPE", help="name that luna-recipes lists, or a YAML file")
    data = "folder of prepared data, or several folders separated by colons"
    parser.add_argument("data", metavar="DATA", help=data)
    dry_run = "check RECIPE and DATA, and print the fairseq-train command without running it"
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("--fp32", action="store_true", help="train in 32 bits")
    parser.add_argument("--save-dir", metavar="DIR", help="folder of the checkpoints")
    return parser


def build_command(words: List[str], should_record: bool = True, option: str = "--save-dir") -> List[str]:
    """Check a recipe and its data, print the batch size and precision, and return the fairseq-train command.

    ``words`` are the command-line arguments of luna-train: recipe, data and options. A resumed run must match
    the options and data recorded in its folder. With ``should_record``, a new run is recorded. ``option``
    names the option that sets the checkpoint folder, for error messages.
    """
    if not words or words[0].startswith("-"):
        raise InputError(f"RECIPE is missing, which luna-recipes lists. Usage: {USAGE}")
    if len(words) < 2 or words[1].startswith("-"):
        raise InputError(f"DATA is missing. Usage: {USAGE}")
    name, data, *given = words
    recipe = read_recipe(name, given=given)
    for folder in map(Path, data.split(":")):
        has_data = any(True for pattern in ("train*", "*/train*") for _ in folder.glob(pattern))
        if not folder.is_dir() or not (has_data or "--train-subset" in parse_options(given)):
            problem = "holds no training data" if folder.is_dir() else "is not a folder"
            raise InputError(
                f"{folder} {problem}. Use a folder that a luna-prepare command or fairseq-preprocess has "
                "written"
            )
    launch = launch_here(recipe, given)
    print(*(f"{PROGRAM}: {note}" for note in launch.notes), sep="\n", flush=True)
    # If several processes train, only the first one locks the folder and writes the record.
    is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    check_same_run(
        Path(launch.save_dir),
        option,
        _run_identity(recipe, data, given, launch.precision),
        should_record=should_record and is_first,
        is_new=any(word.startswith(_NEW_START) for word in [*recipe.words(), *given]),
    )
    return [sys.executable, "-m", "fairseq_cli.train", data, *launch.options]


def _run_identity(recipe: Recipe, data: str, user_options: Sequence[str], precision: str) -> Dict[str, str]:
    """Return the options and data checksums that must not change when a run is resumed."""
    fixed = select_fixed_options([*recipe.words("update_freq", *PRECISIONS), *user_options])
    precisions = {f"--{name.replace('_', '-')}" for name in PRECISIONS}
    options = {
        name: value
        for name, value in fixed.items()
        if name not in precisions and not name.startswith(_NEW_START)
    }
    options["precision"] = f"--{precision}"
    dataset = recipe.settings["dataset"]
    if not dataset.get("max_tokens") and "--update-freq" not in options:
        # --update-freq follows the batch size per GPU, so the size of the whole batch stays the same.
        options["--batch-size"] = str(dataset["batch_size"])
    return {**options, "training data": checksum_of_data([Path(one) for one in data.split(":")])}


def launch_here(recipe: Recipe, user_options: Sequence[str]) -> Launch:
    """Return the options for training on this machine with a recipe, which ``user_options`` override."""
    # Imported here so that --help is fast.
    import torch

    gpus = torch.cuda.device_count()
    capability = torch.cuda.get_device_capability() if gpus else None
    return compute_launch(recipe, user_options, max(gpus, 1), capability)


def _train(words: List[str]) -> None:
    """Run luna-train: replace this process with fairseq-train. With ``--dry-run``, only print its command."""
    if "--dry-run" in words:
        words = [word for word in words if word != "--dry-run"]
        print(*map(shlex.quote, build_command(words, should_record=False)))
        return
    line = build_command(words)
    # fairseq-train replaces this process, so that signals reach it.
    os.execv(line[0], line)


main = console_script(PROGRAM, build_parser, _train, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
