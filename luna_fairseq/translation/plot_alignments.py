"""What models read of one source sentence, drawn beside each other: ``python -m
luna_fairseq.translation.plot_alignments OUTPUT [OUTPUT ...] --sentence N --plot FILE``.

An OUTPUT is what ``fairseq-generate --print-alignment soft`` printed, without --remove-bpe: of any model,
fairseq's own too. A row is a piece of the model's translation, a column one of the source, the darker the
more it was read.
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
from luna_fairseq.translation.generated import SENTENCEPIECE_SPACE, labelled_lines

PROGRAM = "python -m luna_fairseq.translation.plot_alignments"
EOS = "</s>"
COLUMNS = 3
SHORTENED = 12  # characters of a label


class Alignment(NamedTuple):
    """Of one sentence: pieces of source and translation, </s> included, and the weights [target][source]."""

    source: List[str]
    target: List[str]
    weights: List[List[float]]


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(PROGRAM, __doc__)
    add = parser.add_argument
    parser.path("outputs", "of fairseq-generate", "OUTPUT", nargs="+")
    sentence = "its number in the test set, from 0 (default: 0)"
    add("--sentence", type=Number(int, least=0), default=0, metavar="N", help=sentence)
    add("--titles", nargs="+", metavar="TEXT", help="over the pictures (default: the names of the files)")
    parser.path("--plot", "PNG to write", required=True)
    return parser


def read_alignment(path: Path, sentence: int) -> Alignment:
    """The best hypothesis of a sentence and what it was aligned with. Raises InputError where the file cannot
    be read or breaks off; it has no such sentence, no soft alignments, or whole words."""
    lines: Dict[str, str] = {}
    for kind, number, text in labelled_lines(path):
        if number == sentence:
            lines.setdefault(kind, text)  # of several hypotheses the first, which is the best
    if "H" not in lines or "S" not in lines:
        raise InputError(
            f"{path} has no translation of sentence {sentence}: give the output of fairseq-generate"
        )
    if "," not in lines.get("A", ""):
        raise InputError(
            f"{path} has no weights of alignments: run fairseq-generate with --print-alignment soft"
        )
    source, target = [*lines["S"].split(), EOS], [*lines["H"].partition("\t")[2].split(), EOS]
    try:
        weights = [[float(weight) for weight in row.split(",")] for row in lines["A"].split()]
    except ValueError:
        raise InputError(f"{path}: the alignment of sentence {sentence} is damaged") from None
    if len(weights) != len(target) or any(len(row) != len(source) for row in weights):
        raise InputError(
            f"{path}: sentence {sentence} has {len(source)} and {len(target)} tokens, its alignment "
            f"{len(weights[0])} and {len(weights)}: run fairseq-generate without --remove-bpe"
        )
    return Alignment(source, target, weights)


def draw(args: argparse.Namespace) -> None:
    """Write the picture; arguments are those of the command line. Raises InputError as
    :func:`read_alignment`, and for another number of titles than outputs."""
    titles = args.titles or [path.stem for path in args.outputs]
    if len(titles) != len(args.outputs):
        raise InputError(
            f"there are {len(args.outputs)} outputs and {len(titles)} --titles: give one for each"
        )
    alignments = [read_alignment(path, args.sentence) for path in args.outputs]
    check_plot(args.plot, "--plot")
    columns = min(COLUMNS, len(alignments))
    rows = -(-len(alignments) // columns)
    figure = new_figure(figsize=(4.2 * columns, 4.4 * rows))
    for place, (title, one) in enumerate(zip(titles, alignments), start=1):
        axes = figure.add_subplot(rows, columns, place)
        axes.imshow(one.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(title, fontsize=10)
        axes.set_xticks(range(len(one.source)), list(map(shown, one.source)), rotation=90, fontsize=7)
        axes.set_yticks(range(len(one.target)), list(map(shown, one.target)), fontsize=7)
    save_png(figure, args.plot)


def shown(piece: str) -> str:
    """A label: no mark of a word's beginning, no more than fits, and a dollar that begins no formula."""
    text = piece.replace(SENTENCEPIECE_SPACE, "") or "_"
    return text[:SHORTENED].replace("$", r"\$")


main = console_script(PROGRAM, build_parser, draw)


if __name__ == "__main__":
    sys.exit(main())
