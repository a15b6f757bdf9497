"""How many parameters the model of a recipe has: ``python -m luna_fairseq.commands.count_parameters RECIPE``.

The default size of the dictionary is the one that four of the five parameter counts in the paper's Table 4
imply.
"""

from __future__ import annotations

import argparse
import sys
from typing import Dict

import luna_fairseq.models  # noqa: F401  (registers what a checkpoint may name)
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError

PROGRAM = "python -m luna_fairseq.commands.count_parameters"
PAPER_DICTIONARY_SIZE = 40544


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.add_argument("recipe", metavar="RECIPE", help="of translation; luna-recipes lists them")
    size = "entries of the dictionary, special symbols included"
    parser.count("--dictionary-size", PAPER_DICTIONARY_SIZE, size)
    return parser


def _count(args: argparse.Namespace) -> None:
    recipe = read_recipe(args.recipe)
    counts = count_parameters(recipe, args.dictionary_size)
    total = sum(counts.values())
    print(f"{recipe.path.stem} with a dictionary of {args.dictionary_size:,}: {total:,} ({total / 1e6:.1f}M)")
    for part, number in counts.items():
        print(f"  {part}: {number:,}")


def count_parameters(recipe: Recipe, dictionary_size: int) -> Dict[str, int]:
    """Parameters of a translation recipe's model (its part -> number), those that several parts share counted
    once. Raises InputError where the task is another one, or ``dictionary_size``, entries of the joined
    dictionary with the special symbols, is smaller than their number."""
    task = recipe.settings["task"]["_name"]
    if task != "translation":
        raise InputError(f"parameters are counted of translation models, not of {task}")
    dictionary = Dictionary()
    if dictionary_size < len(dictionary):
        raise InputError(f"a dictionary has {len(dictionary)} special symbols: give --dictionary-size more")
    for index in range(dictionary_size - len(dictionary)):
        dictionary.add_symbol(f"type{index}")
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *recipe.words()])
    config = convert_namespace_to_omegaconf(args)
    model = TranslationTask(config.task, dictionary, dictionary).build_model(config.model)
    counts = {"embeddings": 0, "learned P": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        kind = "embeddings" if "embed_tokens" in name else name.split(".")[0]
        counts["learned P" if "packed_embedding" in name else kind] += parameter.numel()
    return {part: number for part, number in counts.items() if number}


main = console_script(PROGRAM, build_parser, _count, hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
