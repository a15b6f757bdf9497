"""``luna-train``: fairseq-train with a recipe, on the GPUs of this machine.

The batch is the recipe's whatever the number of GPUs: --update-freq makes up for the rest. Trains with --bf16
where the card has it and with --fp16 on a V100. Checkpoints go to checkpoints/ROW (--save-dir). Started
again, it goes on from there. Options override the recipe's; --fp32 is understood too. luna-recipes lists the
recipes, and shows the command; --dry-run, as the first word, looks at RECIPE and DATA and prints it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import torch

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.launch import Launch, launch
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import content_of
from luna_fairseq.files.same_run import lasting_options, same_run

PROGRAM = "luna-train"
USAGE = "luna-train [--dry-run] RECIPE DATA [fairseq-train options]"


def build_parser() -> CommandParser:
    """Return the parser that prints --help."""
    return CommandParser(PROGRAM, __doc__, usage=USAGE)


def command(words: List[str], records: bool = True, option: str = "--save-dir") -> List[str]:
    """The command that trains, after the lines that say what was computed.

    Args:
        words: RECIPE, DATA, and options of fairseq-train.
        records: keep in the folder of the checkpoints what the run is begun with (default: True).
        option: the user's, by which that folder is another one.

    Raises:
        InputError: one of them is missing or wrong, or the checkpoints there are of another run.
    """
    if not words or words[0].startswith("-"):
        raise InputError(f"RECIPE is missing: {USAGE}; luna-recipes lists the recipes")
    if len(words) < 2 or words[1].startswith("-"):
        raise InputError(f"DATA is missing: {USAGE}")
    name, data, *given = words
    recipe = read_recipe(name)
    for folder in data.split(":"):
        if not os.path.isdir(folder):
            raise InputError(
                f"{folder} is no folder: give what a luna-prepare command or fairseq-preprocess made"
            )
    found = launch_here(recipe, given)
    print(*(f"{PROGRAM}: {note}" for note in found.notes), sep="\n", flush=True)
    what = _begun_with(recipe, data, given)
    if what is not None:
        place = Path(found.save_dir)
        # One of the processes that train is enough.
        is_first = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
        same_run(place, option, what, (place / "checkpoint_last.pt").is_file(), records and is_first)
    return [sys.executable, "-m", "fairseq_cli.train", data, *found.options]


def _begun_with(recipe: Recipe, data: str, given: Sequence[str]) -> Optional[Dict[str, str]]:
    """What goes on is what was begun; None where fairseq is told to start from something else."""
    words = [*recipe.words("update_freq"), *given]
    if any(word.startswith(("--reset-", "--restore-file")) for word in words):
        return None
    return {**lasting_options(words), "training data": content_of([Path(one) for one in data.split(":")])}


def launch_here(recipe: Recipe, given: Sequence[str]) -> Launch:
    """The recipe with the GPUs of this machine."""
    gpus = torch.cuda.device_count()
    return launch(recipe, given, max(gpus, 1), torch.cuda.get_device_capability() if gpus else None)


def _train(words: List[str]) -> None:
    if words[:1] == ["--dry-run"]:
        print(*map(shlex.quote, command(words[1:], records=False)))
        return
    line = command(words)
    # In the place of this process, so that signals reach it.
    os.execv(line[0], line)


# Where nothing is wrong, the process becomes fairseq-train.
main = console_script(PROGRAM, build_parser, _train, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
