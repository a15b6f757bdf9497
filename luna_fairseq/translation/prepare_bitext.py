"""Command ``luna-prepare-bitext``: convert parallel text into a data folder for fairseq-train.

The command checks the text, learns a joint byte-pair encoding on the training text, and encodes all text. It
writes the same files as fairseq-preprocess with a joint dictionary. Training pairs with an empty side are
dropped and counted. In validation and test text an empty side is an error, because scores count every line.

DIR then contains the data, the encoding (sentencepiece.bpe.model or bpe.codes) and plain copies of the
validation and test text. With --shards, the data is in DIR/shard0, DIR/shard1 and so on, and each epoch of
training reads one of these folders. DIR then has the dictionaries too, for use with the trained model. If you
start the command again, it does only what is left or what has changed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from luna_fairseq.commands.arguments import CommandParser, Number, read_options
from luna_fairseq.commands.reporting import console_script

PROGRAM = "luna-prepare-bitext"
EXAMPLE = (
    f"{PROGRAM} -s en -t de --trainpref text/train --validpref text/valid \\\n"
    "    --testpref text/test --vocab-size 10000 --destdir data"
)
# Names of luna_fairseq.text.subword.SUBWORD_METHODS. That module imports fairseq, which takes seconds.
SUBWORD = ("sentencepiece", "moses")


@dataclass
class BitextOptions:
    """Options of luna-prepare-bitext, which ``--help`` explains.

    ``subword`` is a key of :data:`luna_fairseq.text.subword.SUBWORD_METHODS`, and ``vocab_size`` is None for
    a method that learns no subwords.
    """

    source_lang: str
    target_lang: str
    trainpref: str
    validpref: str
    testpref: Optional[str]
    destdir: Path
    vocab_size: Optional[int]
    subword: str = "sentencepiece"
    max_length: Optional[int] = None
    max_ratio: Optional[float] = None
    shards: int = 1
    documents: Optional[int] = None
    max_unknown: float = 2.0
    workers: int = 1


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    add = parser.add_argument
    add("-s", "--source-lang", required=True, metavar="LANG", help="source language, the suffix of its files")
    add("-t", "--target-lang", required=True, metavar="LANG", help="target language, the suffix of its files")
    train = "training text: the files PREFIX.LANG of both languages"
    add("--trainpref", required=True, metavar="PREFIX", help=train)
    several = "one prefix, or several separated by commas"
    add("--validpref", required=True, metavar="PREFIX", help=f"validation text: {several}")
    add("--testpref", metavar="PREFIX", help=f"test text: {several} (default: none)")
    size = "number of pieces of the encoding (with --subword moses, number of merges)"
    parser.count("--vocab-size", None, size, required=True)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    add_text_arguments(parser)
    parser.count(
        "--documents",
        None,
        "join the sentences of each document to pieces of up to N source tokens. Documents are divided by "
        "empty lines, or PREFIX.doc names the document of each line. Training pieces have up to N tokens on "
        "both sides, and the single sentences are kept beside them (default: translate sentences)",
    )
    return parser


def add_text_arguments(parser: CommandParser) -> None:
    """Add the options shared by all commands that prepare parallel text."""
    add = parser.add_argument
    add(
        "--subword",
        choices=SUBWORD,
        default="sentencepiece",
        help="sentencepiece encodes raw text and is reversible. moses normalises punctuation, tokenises with "
        "hyphens split (sacremoses) and applies subword-nmt (default: %(default)s)",
    )
    long = "drop training pairs with a side of more than N pieces (default: keep all)"
    parser.count("--max-length", None, long)
    ratio = (
        "drop training pairs if one side has more than R times the pieces of the other (default: keep all)"
    )
    add("--max-ratio", type=Number(float, least=1), metavar="R", help=ratio)
    parser.count("--shards", 1, "number of parts that the training text is divided into")
    parser.max_unknown()
    parser.workers()


def _run(args: argparse.Namespace) -> None:
    # Imported here so that --help does not wait for fairseq.
    from luna_fairseq.translation.preparation import Preparation

    Preparation(read_options(BitextOptions, args)).run()


main = console_script(PROGRAM, build_parser, _run, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
