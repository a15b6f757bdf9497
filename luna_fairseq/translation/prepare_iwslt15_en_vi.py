"""``luna-prepare-iwslt15-en-vi``: IWSLT'15 English-Vietnamese, from the public files to the folder that
fairseq-train reads.

Trains on 133,317 pairs of TED talks, validates on tst2012 (1,553), tests on tst2013 (1,268), tokenised as
they are published. A vocabulary of whole words for each side, of those that occur often enough in the
training text. Training pairs with an empty side or too many words are dropped and counted. The files go to
DIR/archives, plain validation and test text to DIR/plain, which scores are taken against. Started again, it
does only what is left or what has changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Mapping, Optional

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.download import RemoteFile, fetch
from luna_fairseq.text.bitext import Bitext
from luna_fairseq.text.subword import words
from luna_fairseq.translation.prepare_bitext import Preparation

PROGRAM = "luna-prepare-iwslt15-en-vi"
SITE = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
LANGUAGES = ("en", "vi")
# Split -> name of the published files, without the language, and their lines.
PARTS = {"train": ("train", 133317), "valid": ("tst2012", 1553), "test": ("tst2013", 1268)}


def build_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.add_argument(
        "--mirror",
        metavar="DIR|URL",
        help="take the files (train, tst2012, tst2013; .en, .vi) from this folder or address instead of "
        "stanford.edu, whatever they hold: numbers of lines are then not compared with the published ones",
    )
    parser.count("--min-count", 5, "how often a word of the vocabulary occurs in the training text")
    parser.count("--max-length", 200, "drop training pairs with a side of more than N words")
    parser.workers()
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Get the files, check and encode them, and print the counts."""
    text = argparse.Namespace(
        **vars(args),
        **{f"{split}pref": get(split, args.destdir / "archives", args.mirror) for split in PARTS},
        source_lang=LANGUAGES[0],
        target_lang=LANGUAGES[1],
        max_unknown=100.0,  # rare words are
        vocab_size=None,
        max_ratio=None,
        documents=None,
        shards=1,
    )
    preparation = Preparation(text, words(args.min_count))
    preparation.check()
    if args.mirror is None:
        check_published(preparation.text)
    preparation.run()


def get(split: str, folder: Path, mirror: Optional[str]) -> str:
    """What the names of both sides of a part begin with."""
    name = PARTS[split][0]
    files = [fetch(RemoteFile(f"{SITE}/{name}.{language}", None), folder, mirror) for language in LANGUAGES]
    return str(files[0].with_suffix(""))


def check_published(text: Mapping[str, Bitext]) -> None:
    """Raise InputError where the numbers of lines are not the published ones."""
    for split, part in text.items():
        if part.lines != PARTS[split][1]:
            raise InputError(
                f"{part.source} has {part.lines:,} lines instead of {PARTS[split][1]:,}: it is not the "
                "published file; remove it, or give its folder as --mirror"
            )


main = console_script(PROGRAM, build_parser, prepare, place="destdir")


if __name__ == "__main__":
    sys.exit(main())
