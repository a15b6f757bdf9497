"""Command ``luna-train``: train a model with a recipe on the GPUs of this machine.

The command checks RECIPE and DATA, and then runs fairseq-train. luna-recipes lists the recipes. With any
number of GPUs, the batch has the size of the recipe, because --update-freq is chosen accordingly. Training
uses --bf16 if the GPU supports it, --fp16 on a V100, and 32 bits elsewhere.

Checkpoints are written to checkpoints/ROW unless you give --save-dir. If you repeat the command, training
resumes from the last checkpoint. Options of fairseq-train override the recipe, and --fp32 selects 32 bits.
With --dry-run as the first argument, the command only prints the fairseq-train command.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.launch import Launch, compute_launch
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import checksum_of_data
from luna_fairseq.files.same_run import check_same_run, lasting_options

PROGRAM = "luna-train"
USAGE = "luna-train [--dry-run] RECIPE DATA [fairseq-train options]"


def build_parser() -> CommandParser:
    """Build the parser, which is used for --help only."""
    example = "luna-train bitext/small_anchored data-bin/mine --max-epoch 20"
    return CommandParser(PROGRAM, __doc__, usage=USAGE, example=example)


def command(words: List[str], should_record: bool = True, option: str = "--save-dir") -> List[str]:
    """Build the fairseq-train command, and print lines that explain its batch and precision.

    Args:
        words: RECIPE, DATA, and options of fairseq-train.
        should_record: record the options and the data in the folder of the checkpoints, to be compared when
            the run is resumed (default: True).
        option: name of the option for the folder of the checkpoints, for error messages.

    Returns:
        The words of the command.

    Raises:
        InputError: An argument is missing or invalid, or the folder has checkpoints of another run.
    """
    if not words or words[0].startswith("-"):
        raise InputError(f"RECIPE is missing: {USAGE}. luna-recipes lists the recipes")
    if len(words) < 2 or words[1].startswith("-"):
        raise InputError(f"DATA is missing: {USAGE}")
    name, data, *given = words
    recipe = read_recipe(name)
    for folder in data.split(":"):
        if not os.path.isdir(folder):
            raise InputError(
                f"{folder} is not a folder. Use a folder that a luna-prepare command or fairseq-preprocess "
                "has written"
            )
    launch = launch_here(recipe, given)
    print(*(f"{PROGRAM}: {note}" for note in launch.notes), sep="\n", flush=True)
    identity = _run_identity(recipe, data, given)
    if identity is not None:
        checkpoints = Path(launch.save_dir)
        is_resumed = (checkpoints / "checkpoint_last.pt").is_file()
        # If several processes train, only the first one writes the record.
        is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
        check_same_run(checkpoints, option, identity, is_resumed, should_record and is_first)
    return [sys.executable, "-m", "fairseq_cli.train", data, *launch.options]


def _run_identity(recipe: Recipe, data: str, user_options: Sequence[str]) -> Optional[Dict[str, str]]:
    """Return the options and the data that must not change when a run is resumed.

    The result is None if the user chooses another checkpoint, or resets parts of the checkpoint.

    Args:
        recipe: recipe of the run.
        data: folders with the binarised data, separated by colons.
        user_options: the user's options for fairseq-train.

    Returns:
        Value of each option that must not change, and the checksum of the data. None if the user chooses
        another checkpoint, or resets parts of the checkpoint.
    """
    words = [*recipe.words("update_freq"), *user_options]
    if any(word.startswith(("--reset-", "--restore-file")) for word in words):
        return None
    return {
        **lasting_options(words),
        "training data": checksum_of_data([Path(one) for one in data.split(":")]),
    }


def launch_here(recipe: Recipe, user_options: Sequence[str]) -> Launch:
    """Compute the options that train a recipe on the GPUs of this machine.

    Args:
        recipe: recipe to train.
        user_options: options of fairseq-train that override the recipe.

    Returns:
        Options, in the forms of fairseq-train and of hydra, with lines that explain the batch and the
        precision.

    Raises:
        InputError: The recipe's batch cannot be divided among the GPUs.
    """
    # Imported here so that --help is fast.
    import torch

    gpus = torch.cuda.device_count()
    capability = torch.cuda.get_device_capability() if gpus else None
    return compute_launch(recipe, user_options, max(gpus, 1), capability)


def _train(words: List[str]) -> None:
    """Replace this process by fairseq-train, or print the command with ``--dry-run``.

    Args:
        words: command line, without the name of the program.
    """
    if words[:1] == ["--dry-run"]:
        print(*map(shlex.quote, command(words[1:], should_record=False)))
        return
    line = command(words)
    # fairseq-train replaces this process, so that signals reach it.
    os.execv(line[0], line)


main = console_script(PROGRAM, build_parser, _train, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
