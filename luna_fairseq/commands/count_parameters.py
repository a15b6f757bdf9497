"""Command ``count_parameters``: print the number of parameters of a translation recipe's model.

The command also prints the numbers for the embeddings, the encoder, the decoder, and the learned packed
sequence P, which is an extra input of Luna models. The paper does not state its dictionary size. The default
size reproduces four of the five parameter counts in its Table 4.
"""

from __future__ import annotations

import argparse
import sys
from typing import Dict

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.recipes import Recipe, read_recipe
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError

PROGRAM = "python -m luna_fairseq.commands.count_parameters"
PAPER_DICTIONARY_SIZE = 40544


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, example=f"{PROGRAM} wmt14_en_de/luna_16_softplus_tied")
    parser.add_argument("recipe", metavar="RECIPE", help="translation recipe; luna-recipes lists them")
    size = "number of entries in the dictionary, including special symbols"
    parser.count("--dictionary-size", PAPER_DICTIONARY_SIZE, size)
    return parser


def _print_counts(args: argparse.Namespace) -> None:
    """Run the command: print the number of parameters of a recipe's model and of its parts."""
    recipe = read_recipe(args.recipe)
    counts = count_parameters(recipe, args.dictionary_size)
    total = sum(counts.values())
    print(f"{recipe.path.stem} with a dictionary of {args.dictionary_size:,}: {total:,} ({total / 1e6:.1f}M)")
    for part, number in counts.items():
        print(f"  {part}: {number:,}")


def count_parameters(recipe: Recipe, dictionary_size: int) -> Dict[str, int]:
    """Count the parameters in the embeddings, learned P, encoder and decoder of a recipe's model.

    Shared parameters are counted once, and components without parameters are omitted.
    """
    # Imported here so that --help is fast. luna_fairseq.models registers the models of recipes.
    import luna_fairseq.models  # noqa: F401
    from fairseq import options
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.tasks.translation import TranslationTask

    task = recipe.settings["task"]["_name"]
    if task != "translation":
        raise InputError(f"the task of recipe {recipe.name} is {task}. Use a translation recipe")
    dictionary = Dictionary()
    if dictionary_size < len(dictionary):
        raise InputError(
            f"--dictionary-size {dictionary_size}: expected at least {len(dictionary)}, the number of "
            "special symbols"
        )
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


main = console_script(PROGRAM, build_parser, _print_counts, hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
