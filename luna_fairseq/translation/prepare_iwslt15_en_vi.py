"""Command ``luna-prepare-iwslt15-en-vi``: download IWSLT'15 English-Vietnamese and encode it for fairseq.

The training text is 133,317 pairs of sentences from TED talks. The validation text is tst2012 (1,553 pairs)
and the test text is tst2013 (1,268 pairs). The published files are already tokenized. Each language gets a
dictionary of the words that occur often enough in the training text. Training pairs with an empty side or too
many words are dropped and counted.

Downloads go to DIR/archives, and plain copies of the validation and test text to DIR/plain. If you start the
command again, it does only what is left or what has changed.
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
from luna_fairseq.translation.prepare_bitext import BitextOptions

PROGRAM = "luna-prepare-iwslt15-en-vi"
SITE = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
LANGUAGES = ("en", "vi")
# For each split, the name of its published files without the language, and their number of lines.
PARTS = {"train": ("train", 133317), "valid": ("tst2012", 1553), "test": ("tst2013", 1268)}


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, f"{PROGRAM} --destdir iwslt15")
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.add_argument(
        "--mirror",
        metavar="DIR|URL",
        help="folder or address of the files train, tst2012 and tst2013 (.en, .vi) (default: stanford.edu). "
        "Numbers of lines of a mirror are not compared with the published ones",
    )
    parser.count("--min-count", 5, "minimum number of times a word of the vocabulary occurs in training text")
    parser.count("--max-length", 200, "drop training pairs with a side of more than N words")
    parser.workers()
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Run the command: download, check and encode the text, and print the size of each split."""
    # Imported here so that --help does not wait for fairseq.
    from luna_fairseq.text.subword import whole_word_method
    from luna_fairseq.translation.preparation import Preparation

    train, valid, test = (download(split, args.destdir / "archives", args.mirror) for split in PARTS)
    text = BitextOptions(
        source_lang=LANGUAGES[0],
        target_lang=LANGUAGES[1],
        trainpref=train,
        validpref=valid,
        testpref=test,
        destdir=args.destdir,
        vocab_size=None,
        max_length=args.max_length,
        max_unknown=100.0,  # rare words are unknown
        workers=args.workers,
    )
    preparation = Preparation(text, whole_word_method(args.min_count))
    preparation.check()
    if args.mirror is None:
        check_published(preparation.text)
    preparation.run()


def download(split: str, folder: Path, mirror: Optional[str]) -> str:
    """Download both files of a split from ``mirror``, or from stanford.edu if ``mirror`` is None.

    Return their common path without the language, such as ``archives/tst2012``.
    """
    name = PARTS[split][0]
    files = [fetch(RemoteFile(f"{SITE}/{name}.{language}", None), folder, mirror) for language in LANGUAGES]
    return str(files[0].with_suffix(""))


def check_published(text: Mapping[str, Bitext]) -> None:
    """Raise InputError if a split does not have the published number of lines."""
    for split, part in text.items():
        if part.lines != PARTS[split][1]:
            raise InputError(
                f"{part.source} has {part.lines:,} lines instead of the published {PARTS[split][1]:,}. "
                "Remove the file, or give its folder as --mirror."
            )


main = console_script(PROGRAM, build_parser, prepare, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
