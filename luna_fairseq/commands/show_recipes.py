"""Command ``luna-recipes``: list the recipes (files with all options of a run), or show a recipe.

Without arguments, the command lists all recipes. With NAME, it prints the recipe's description and options,
and the commands of fairseq-train and fairseq-hydra-train that train it on the GPUs of this machine.

NAME is a name from the list, or its last part if only one name ends so, or the path of a YAML file. Options
of fairseq-train after NAME override the recipe. Use luna-train to train with a recipe.
"""

from __future__ import annotations

import shlex
import sys
from typing import List

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.recipes import list_recipes, read_heading, read_recipe, recipe_folder
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError

PROGRAM = "luna-recipes"
USAGE = "luna-recipes [--folder | NAME [fairseq-train options]]"


def build_parser() -> CommandParser:
    """Build the parser that prints ``--help``. The command itself receives its arguments unparsed."""
    example = "luna-recipes wmt14_en_de/luna_16_softplus_tied"
    parser = CommandParser(PROGRAM, __doc__, usage=USAGE, example=example)
    parser.add_argument("name", nargs="?", metavar="NAME", help="recipe to show (default: list all recipes)")
    parser.add_argument("--folder", action="store_true", help="print the folder of the recipes")
    return parser


def _recipes(words: List[str]) -> None:
    """Run luna-recipes with arguments ``words``: list the recipes, show one, or print their folder."""
    if words == ["--folder"]:
        print(recipe_folder())
    elif words and words[0].startswith("-"):
        raise InputError(f"{words[0]} is unknown here. Usage: {USAGE}")
    elif words:
        _show(words[0], words[1:])
    else:
        for name in list_recipes():
            print(f"{name:42} {(read_heading(recipe_folder() / f'{name}.yaml') or [''])[0]}")


def _show(name: str, user_options: List[str]) -> None:
    """Print a recipe's description and options, and the training commands, which include ``user_options``."""
    recipe = read_recipe(name, given=user_options)
    # Imported here so that listing the recipes is fast.
    from omegaconf import OmegaConf

    from luna_fairseq.commands.train import launch_here

    launch = launch_here(recipe, user_options)
    print(*(f"# {line}" for line in recipe.heading), sep="\n")
    print(OmegaConf.to_yaml(OmegaConf.create(recipe.settings)))
    print(*(f"# {note}" for note in launch.notes), sep="\n")
    print(_format_command(["fairseq-train", "DATA", *launch.options]))
    if not user_options and recipe.base is not None:
        family, row = recipe.path.parent.name, recipe.path.stem
        where = ["--config-dir", str(recipe.path.parent.parent), "--config-name", family, f"+{family}={row}"]
        print()
        print(_format_command(["fairseq-hydra-train", *where, "task.data=DATA", *launch.hydra]))


def _format_command(words: List[str]) -> str:
    """Format command-line words for pasting into a shell, with a line break before each option."""
    lines = [""]
    for word in words:
        if word.startswith("--") or ("=" in word and lines[-1]):
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{shlex.quote(word)}"
    return " \\\n    ".join(lines)


main = console_script(PROGRAM, build_parser, _recipes, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
