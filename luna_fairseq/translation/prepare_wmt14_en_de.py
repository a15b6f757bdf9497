"""Command ``luna-prepare-wmt14-en-de``: download WMT'14 English-German and encode it for fairseq.

The training text is Europarl v7, Common Crawl and News Commentary v9 (4,520,620 pairs), the validation text
is newstest2013 and the test text is newstest2014 (full, 3,003 lines).

Archives go to DIR/archives (1.7 GB), the text to DIR/text and the data to DIR/sentencepiece or DIR/moses, so
that both encodings share one download. If you start the command again, it does only what is left or what has
changed, and continues an interrupted download.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from luna_fairseq.commands.arguments import CommandParser, read_options
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.files.checksums import digest
from luna_fairseq.files.download import fetch
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.translation.prepare_bitext import BitextOptions, add_text_arguments
from luna_fairseq.translation.wmt14 import LANGUAGES, PARTS, text_files, write_text

PROGRAM = "luna-prepare-wmt14-en-de"
# The paper names 37,000 types. Its parameter counts imply the 40,000 merges of fairseq's recipe.
VOCAB_SIZES = {"sentencepiece": 37000, "moses": 40000}
# Part of the key of the text. Increase it when the conversion changes, so that old text is converted again.
VERSION = 1


def prepare(args: argparse.Namespace) -> None:
    """Run the command: download WMT'14 English-German, extract plain text, and encode it for fairseq."""
    # Imported here so that --help does not wait for fairseq.
    from luna_fairseq.translation.preparation import Preparation

    make_text(args.destdir, args.mirror)
    text = read_options(
        BitextOptions,
        args,
        **{f"{split}pref": str(args.destdir / "text" / split) for split in ("train", "valid", "test")},
        source_lang=LANGUAGES[0],
        target_lang=LANGUAGES[1],
        vocab_size=args.vocab_size or VOCAB_SIZES[args.subword],
        destdir=args.destdir / args.subword,
    )
    Preparation(text).run()


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, f"{PROGRAM} --destdir wmt14 --subword moses --max-length 250")
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.add_argument(
        "--mirror",
        metavar="DIR|URL",
        help="folder or address of the archives (default: statmt.org). Sizes, checksums and numbers of lines "
        "of a mirror are not compared with the published ones",
    )
    size = "number of pieces of the encoding (default: 37000; with --subword moses 40000 merges)"
    parser.count("--vocab-size", None, size)
    add_text_arguments(parser)
    return parser


def make_text(folder: Path, mirror: Optional[str]) -> None:
    """Download the archives and write the plain text of all splits, unless the text is up to date.

    The text is written to the subfolder ``text``. ``mirror`` is a folder or address that replaces statmt.org.
    """
    files = [f"text/{name}" for name in text_files()]
    steps = FinishedSteps(folder, "prepare_wmt14.json", files)

    def fetch_all() -> Dict[str, Path]:
        return {part.name: fetch(part.archive, folder / "archives", mirror) for part in PARTS}

    # The published archives are identified by their checksums and may be deleted once the text is written.
    archives: Dict[str, Path] = {} if mirror is None else fetch_all()

    def make() -> Tuple[List[str], Dict[str, int]]:
        return files, write_text(archives or fetch_all(), folder / "text", mirror is None)

    identity: List[Any] = [[part.archive.url, part.archive.size, part.archive.checksum] for part in PARTS]
    if archives:
        identity = [[path.stat().st_size, path.stat().st_mtime_ns] for path in archives.values()]
    counts = steps.do("text", digest(VERSION, identity), make)
    for part in PARTS:
        expected = "" if mirror is None else f" (published: {part.lines:,})"
        print(f"{part.name}: {counts[part.name]:,} pairs{expected}")


main = console_script(PROGRAM, build_parser, prepare, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
