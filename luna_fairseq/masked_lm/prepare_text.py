"""Command ``luna-prepare-text``: convert raw text into training data for language models.

fairseq's tasks masked_lm and language_modeling read the data. The text is in UTF-8, with one sentence or
paragraph per line, and empty lines between documents. It is encoded with GPT-2's byte-pair encoding if you
give its files. Otherwise, a sentencepiece encoding is learned from the training text. The text may be larger
than the memory.

The command writes to DIR the binarised data, dict.txt, and the files of the tokenizer, which
LunaMaskedLM.from_pretrained finds by their names. With --shards, the documents of the training text are
divided among the folders DIR/shard0, DIR/shard1 and so on. Each epoch of training then reads one of these
folders. If you repeat the command, it skips finished steps whose input has not changed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser, read_options
from luna_fairseq.commands.reporting import console_script

PROGRAM = "luna-prepare-text"
EXAMPLE = f"{PROGRAM} --train train.txt --valid valid.txt --vocab-size 8000 --destdir data"


@dataclass
class TextOptions:
    """Options of luna-prepare-text, which ``--help`` explains.

    ``vocab_size`` is None for GPT-2's encoding.
    """

    train: Sequence[Path]
    valid: Sequence[Path]
    destdir: Path
    test: Sequence[Path] = ()
    vocab_size: Optional[int] = None
    gpt2_encoder_json: Optional[Path] = None
    gpt2_vocab_bpe: Optional[Path] = None
    dict: Optional[Path] = None
    shards: int = 1
    max_unknown: float = 2.0
    workers: int = 1


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-prepare-text."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    parser.path("--train", "files of the training text", nargs="+", required=True)
    parser.path("--valid", "files of the validation text", nargs="+", required=True)
    parser.path("--test", "files of the test text (default: none)", nargs="+", default=[])
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.count("--vocab-size", None, "number of pieces of the sentencepiece encoding to learn")
    parser.path("--gpt2-encoder-json", "GPT-2's encoder.json, in place of --vocab-size")
    parser.path("--gpt2-vocab-bpe", "GPT-2's vocab.bpe, given with --gpt2-encoder-json")
    parser.path("--dict", "dictionary to use (default: all pieces, sorted by frequency)")
    parser.count("--shards", 1, "number of parts that the training text is divided into")
    parser.max_unknown()
    parser.workers()
    return parser


def _run(args: argparse.Namespace) -> None:
    # Imported here so that --help does not have to import fairseq.
    from luna_fairseq.masked_lm.text_preparation import TextPreparation

    TextPreparation(read_options(TextOptions, args)).run()


main = console_script(PROGRAM, build_parser, _run, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
