"""``luna-recipes``: the recipes there are; with NAME what one of them means, here.

Prints the recipe's heading, its options with those of the family that it extends, and the equal commands of
fairseq-train and fairseq-hydra-train with the batch divided among this machine's GPUs. NAME is family/row, or
the row alone where that is clear, or a file of your own; options of fairseq-train that follow it override the
recipe's. luna-train runs the command. --folder prints where the files are.
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
    """Return the parser that prints --help."""
    return CommandParser(PROGRAM, __doc__, usage=USAGE)


def _recipes(words: List[str]) -> None:
    if words == ["--folder"]:
        print(folder())
    elif words:
        _show(words[0], words[1:])
    else:
        for name in names():
            print(f"{name:42} {(read_heading(folder() / f'{name}.yaml') or [''])[0]}")


def _show(name: str, given: List[str]) -> None:
    recipe = read_recipe(name)
    from omegaconf import OmegaConf

    from luna_fairseq.commands.train import launch_here

    found = launch_here(recipe, given)
    print(*(f"# {line}" for line in recipe.heading), sep="\n")
    print(OmegaConf.to_yaml(OmegaConf.create(recipe.settings)))
    print(*(f"# {note}" for note in found.notes), sep="\n")
    print(_command(["fairseq-train", "DATA", *found.options]))
    if not given and recipe.base is not None:
        family, row = recipe.path.parent.name, recipe.path.stem
        where = ["--config-dir", str(recipe.path.parent.parent), "--config-name", family, f"+{family}={row}"]
        print()
        print(_command(["fairseq-hydra-train", *where, "task.data=DATA", *found.hydra]))


def _command(words: List[str]) -> str:
    """A line for a shell, each option in a line of its own."""
    lines = [""]
    for word in words:
        if word.startswith("--") or ("=" in word and lines[-1]):
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{shlex.quote(word)}"
    return " \\\n    ".join(lines)


main = console_script(PROGRAM, build_parser, _recipes, takes_words=True)


if __name__ == "__main__":
    sys.exit(main())
