"""``luna-prepare-wmt14-en-de``: WMT'14 English-German, from the public archives to the folder that
fairseq-train reads.

Trains on Europarl v7, Common Crawl and News Commentary v9 (4,520,620 pairs), validates on newstest2013, tests
on newstest2014 (full, 3,003 lines). Archives go to DIR/archives (1.7 GB), the text to DIR/text, the data to
DIR/sentencepiece or DIR/moses, so that both encodings share one download. Started again, it does only what is
left or what has changed, and goes on with a download that broke off.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.files.checksums import digest
from luna_fairseq.files.download import fetch
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.translation.prepare_bitext import Preparation, add_text_arguments
from luna_fairseq.translation.wmt14 import LANGUAGES, PARTS, text_files, write_text

PROGRAM = "luna-prepare-wmt14-en-de"
# The paper speaks of 37,000 types; fairseq's recipe learns 40,000 merges, which its parameter counts imply.
VOCAB_SIZES = {"sentencepiece": 37000, "moses": 40000}
# Part of the key of the text: a change of how it is made must not take the old one for finished.
VERSION = 1


def prepare(args: argparse.Namespace) -> None:
    """The plain text, then what luna-prepare-bitext makes of it."""
    make_text(args.destdir, args.mirror)
    text = {
        **{f"{split}pref": str(args.destdir / "text" / split) for split in ("train", "valid", "test")},
        "source_lang": LANGUAGES[0],
        "target_lang": LANGUAGES[1],
        "vocab_size": args.vocab_size or VOCAB_SIZES[args.subword],
        "destdir": args.destdir / args.subword,
        "documents": None,
    }
    Preparation(argparse.Namespace(**{**vars(args), **text})).run()


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.add_argument(
        "--mirror",
        metavar="DIR|URL",
        help="take the archives from this folder or address instead of statmt.org, whatever they hold: "
        "sizes, checksums and numbers of lines are then not compared with the published ones",
    )
    size = "pieces of the encoding (default: 37000), or with --subword moses merges (default: 40000)"
    parser.count("--vocab-size", None, size)
    add_text_arguments(parser)
    return parser


def make_text(folder: Path, mirror: Optional[str]) -> None:
    """Get the archives and write ``folder/text``, unless it stands, and print the pairs of each part."""
    files = [f"text/{name}" for name in text_files()]
    steps = FinishedSteps(folder, "prepare_wmt14.json", files)

    def fetch_all() -> Dict[str, Path]:
        return {part.name: fetch(part.archive, folder / "archives", mirror) for part in PARTS}

    # Archives from the public addresses are known, so that they may be gone once the text stands.
    archives: Dict[str, Path] = {} if mirror is None else fetch_all()

    def make() -> Tuple[List[str], Dict[str, int]]:
        return files, write_text(archives or fetch_all(), folder / "text", mirror is None)

    identity: List[Any] = [[part.archive.url, part.archive.size, part.archive.checksum] for part in PARTS]
    if archives:
        identity = [[path.stat().st_size, path.stat().st_mtime_ns] for path in archives.values()]
    facts = steps.do("text", digest(VERSION, identity), make)
    for part in PARTS:
        expected = "" if mirror is None else f" (published: {part.lines:,})"
        print(f"{part.name}: {facts[part.name]:,} pairs{expected}")


main = console_script(PROGRAM, build_parser, prepare, place="destdir")


if __name__ == "__main__":
    sys.exit(main())
