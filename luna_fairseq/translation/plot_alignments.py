"""Command ``python -m luna_fairseq.translation.plot_alignments``: draw which source pieces models attend to.

Each OUTPUT is the output of ``fairseq-generate --print-alignment soft`` without --remove-bpe, for any model.
The picture has one panel for each OUTPUT, all for the same sentence. Its rows are the subword pieces of the
translation, and its columns are the pieces of the source. Dark cells have large weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.plots import check_plot, new_figure, save_png
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_separate
from luna_fairseq.text.pieces import WORD_MARK
from luna_fairseq.translation.generated import labelled_lines

PROGRAM = "python -m luna_fairseq.translation.plot_alignments"
EOS = "</s>"
COLUMNS = 3
LABEL_LENGTH = 12  # characters


class Alignment(NamedTuple):
    """Attention weights of a translation over its source.

    ``source`` and ``target`` are lists of subword tokens, each ending with ``</s>``. ``weights`` are indexed
    by target token, then by source token.
    """

    source: List[str]
    target: List[str]
    weights: List[List[float]]


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(
        PROGRAM, __doc__, f"{PROGRAM} luna.txt transformer.txt --sentence 7 --plot maps.png"
    )
    add = parser.add_argument
    parser.path("outputs", "output file of fairseq-generate", "OUTPUT", nargs="+")
    sentence = "number of the sentence in the test set, from 0 (default: 0)"
    add("--sentence", type=Number(int, least=0), default=0, metavar="N", help=sentence)
    add("--titles", nargs="+", metavar="TEXT", help="title of each panel (default: names of the files)")
    parser.path("--plot", "PNG file to write", required=True)
    return parser


def read_alignment(path: Path, sentence: int) -> Alignment:
    """Read the source, best hypothesis and attention weights of a sentence from fairseq-generate's output."""
    lines: Dict[str, str] = {}
    for kind, number, text in labelled_lines(path):
        if number == sentence:
            lines.setdefault(kind, text)  # the first of several hypotheses is the best
    if "H" not in lines or "S" not in lines:
        raise InputError(
            f"{path} has no translation of sentence {sentence}. Give the output of fairseq-generate."
        )
    if "," not in lines.get("A", ""):
        raise InputError(
            f"{path} has no alignment weights. Run fairseq-generate with --print-alignment soft."
        )
    source, target = [*lines["S"].split(), EOS], [*lines["H"].partition("\t")[2].split(), EOS]
    try:
        weights = [[float(weight) for weight in row.split(",")] for row in lines["A"].split()]
    except ValueError:
        raise InputError(
            f"{path}: the alignment of sentence {sentence} is damaged. Run fairseq-generate again."
        ) from None
    if len(weights) != len(target) or any(len(row) != len(source) for row in weights):
        raise InputError(
            f"{path}: sentence {sentence} has {len(source)} source and {len(target)} target tokens, but its "
            f"alignment has {len(weights[0])} and {len(weights)}. Run fairseq-generate without --remove-bpe."
        )
    return Alignment(source, target, weights)


def draw(args: argparse.Namespace) -> None:
    """Plot the attention weights of one sentence, with one panel per output file of fairseq-generate."""
    check_separate(args.plot, "--plot", args.outputs)
    titles = args.titles or [path.stem for path in args.outputs]
    if len(titles) != len(args.outputs):
        raise InputError(
            f"there are {len(args.outputs)} outputs and {len(titles)} --titles. Give one title for each."
        )
    alignments = [read_alignment(path, args.sentence) for path in args.outputs]
    check_plot(args.plot, "--plot")
    columns = min(COLUMNS, len(alignments))
    rows = -(-len(alignments) // columns)
    figure = new_figure(figsize=(4.2 * columns, 4.4 * rows))
    for panel, (title, alignment) in enumerate(zip(titles, alignments), start=1):
        axes = figure.add_subplot(rows, columns, panel)
        axes.imshow(alignment.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(title, fontsize=10)
        source, target = ([shorten_label(piece) for piece in side] for side in alignment[:2])
        axes.set_xticks(range(len(source)), source, rotation=90, fontsize=7)
        axes.set_yticks(range(len(target)), target, fontsize=7)
        axes.set_xlabel("source", fontsize=8)
        axes.set_ylabel("translation", fontsize=8)
    save_png(figure, args.plot)


def shorten_label(piece: str) -> str:
    """Shorten a subword piece to an axis label of at most 12 characters.

    SentencePiece's word-boundary marker is removed, and ``$`` is escaped for matplotlib.

    Example:
        >>> shorten_label("▁tree")
        'tree'
    """
    text = piece.replace(WORD_MARK, "") or "_"
    return text[:LABEL_LENGTH].replace("$", r"\$")


main = console_script(PROGRAM, build_parser, draw)


if __name__ == "__main__":
    sys.exit(main())
