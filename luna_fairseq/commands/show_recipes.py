"""Command ``luna-recipes``: list the recipes (files with all options of a training), or show a recipe.

Without arguments, the command lists all recipes. With NAME, it prints the recipe's heading, its options, and
the equivalent commands of fairseq-train and fairseq-hydra-train for the GPUs of this machine. NAME is
FAMILY/ROW, ROW alone if only one family has a recipe of this name, or the path of a file. Options of
fairseq-train after NAME override the recipe.

With --folder, the command prints the folder of the recipes. Use luna-train to train with a recipe.
"""

from __future__ import annotations

import shlex
import sys
from typing import List

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.recipes import folder, names, read_heading, read_recipe
from luna_fairseq.commands.reporting import console_script

PROGRAM = "luna-recipes"
USAGE = "luna-recipes [--folder | NAME [fairseq-train options]]"


def build_parser() -> CommandParser:
    """Build the parser, which is used for --help only."""
    return CommandParser(
        PROGRAM, __doc__, usage=USAGE, example="luna-recipes wmt14_en_de/luna_16_softplus_tied"
    )


def _recipes(words: List[str]) -> None:
    """List the recipes, show one of them, or print their folder.

    Args:
        words: command line, without the name of the program.
    """
    if words == ["--folder"]:
        print(folder())
    elif words:
        _show(words[0], words[1:])
    else:
        for name in names():
            print(f"{name:42} {(read_heading(folder() / f'{name}.yaml') or [''])[0]}")


def _show(name: str, user_options: List[str]) -> None:
    """Print a recipe's heading, options and commands.

    Args:
        name: name or file of the recipe.
        user_options: options of fairseq-train that override the recipe.
    """
    recipe = read_recipe(name)
    # Imported here so that listing the recipes is fast.
    from omegaconf import OmegaConf

    from luna_fairseq.commands.train import launch_here

    launch = launch_here(recipe, user_options)
    print(*(f"# {line}" for line in recipe.heading), sep="\n")
    print(OmegaConf.to_yaml(OmegaConf.create(recipe.settings)))
    print(*(f"# {note}" for note in launch.notes), sep="\n")
    print(_command(["fairseq-train", "DATA", *launch.options]))
    if not user_options and recipe.base is not None:
        family, row = recipe.path.parent.name, recipe.path.stem
        where = ["--config-dir", str(recipe.path.parent.parent), "--config-name", family, f"+{family}={row}"]
        print()
        print(_command(["fairseq-hydra-train", *where, "task.data=DATA", *launch.hydra]))


def _command(words: List[str]) -> str:
    """Format a command for a shell, with each option on its own line.

    Args:
        words: words of the command.

    Returns:
        The command, which begins with an empty line.
    """
    lines = [""]
    for word in words:
        if word.startswith("--") or ("=" in word and lines[-1]):
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{shlex.quote(word)}"
    return " \\\n    ".join(lines)


main = console_script(PROGRAM, build_parser, _recipes, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
