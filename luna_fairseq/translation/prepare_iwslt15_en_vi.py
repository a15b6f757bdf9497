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
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from luna_fairseq.commands.arguments import add_workers, positive
from luna_fairseq.commands.binarise import binarise, binarised_names
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.download import RemoteFile, fetch
from luna_fairseq.files.finished_steps import FinishedSteps, digest
from luna_fairseq.files.writing import replacing, replacing_lines
from luna_fairseq.progress import progress
from luna_fairseq.text.bitext import Bitext, check_bitext
from luna_fairseq.text.length_filter import LengthFilter
from luna_fairseq.text.words import word_dictionary

PROGRAM = "luna-prepare-iwslt15-en-vi"
SITE = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
LANGUAGES = ("en", "vi")
# Split -> name of the published files, without the language, and their lines.
PARTS = {"train": ("train", 133317), "valid": ("tst2012", 1553), "test": ("tst2013", 1268)}
# Part of every key: a change of what a step does must not take the old output for finished.
VERSION = 1


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[1])
    add = parser.add_argument
    add("--destdir", required=True, type=Path, metavar="DIR", help="folder to write to")
    add(
        "--mirror",
        metavar="DIR|URL",
        help="take the files (train, tst2012, tst2013; .en, .vi) from this folder or address instead of "
        "stanford.edu, whatever they hold: numbers of lines are then not compared with the published ones",
    )
    add(
        "--min-count",
        type=positive,
        default=5,
        metavar="N",
        help="how often a word of the vocabulary occurs in the training text (default: %(default)s)",
    )
    add(
        "--max-length",
        type=positive,
        default=200,
        metavar="N",
        help="drop training pairs with a side of more than N words (default: %(default)s)",
    )
    add_workers(parser)
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Get the files, encode, binarise, and print the counts."""
    text = {split: get(split, args.destdir / "archives", args.mirror) for split in PARTS}
    names = binarised_names(LANGUAGES, PARTS)
    steps = FinishedSteps(args.destdir, "prepare_iwslt15.json", names)
    digests = [part.digest for part in text.values()]
    key = digest(VERSION, digests, args.max_length, args.min_count)
    facts = steps.do("encode", key, partial(encode, args, text))
    steps.do("binarise", key, partial(make_data, args, names))
    dropped = "".join(f", {number:,} dropped ({reason})" for reason, number in facts["dropped"].items())
    print(f"train: {facts['train']:,} pairs{dropped}")
    for split in ("valid", "test"):
        print(f"{split}: {text[split].lines:,} pairs")
    sizes = ", ".join(f"{facts['entries'][language]:,} {language}" for language in LANGUAGES)
    print(f"dictionary entries: {sizes}; data in {args.destdir}")


def get(split: str, folder: Path, mirror: Optional[str]) -> Bitext:
    """Both sides of a part, checked. Raises InputError where they are not the published ones."""
    name, lines = PARTS[split]
    files = [fetch(RemoteFile(f"{SITE}/{name}.{language}", None), folder, mirror) for language in LANGUAGES]
    text = check_bitext(str(files[0].with_suffix("")), *LANGUAGES, drop_empty=split == "train")
    if mirror is None and text.lines != lines:
        raise InputError(
            f"{files[0]} has {text.lines:,} lines instead of {lines:,}: it is not the published file; "
            f"remove it, "
            "or give its folder as --mirror"
        )
    return text


def encode(args: argparse.Namespace, text: Dict[str, Bitext]) -> Tuple[List[str], Dict[str, Any]]:
    """Write the training text that stays, the plain text of the rest, and both dictionaries."""
    kept = LengthFilter(args.max_length)
    dropped: Counter = Counter({"an empty side": text["train"].empty} if text["train"].empty else {})
    counts: Dict[str, Counter] = {language: Counter() for language in LANGUAGES}
    written, pairs = [], 0
    for split, part in text.items():
        names = [f"{'encoded' if split == 'train' else 'plain'}/{split}.{each}" for each in LANGUAGES]
        with replacing_lines([args.destdir / name for name in names]) as files:
            for pair in progress(part.pairs(), f"encode {split}"):
                words = [side.split() for side in pair]
                reason = kept.reason(*words) if split == "train" else None
                if reason is not None:
                    dropped[reason] += 1
                    continue
                for language, side, file in zip(LANGUAGES, words, files):
                    file.write(" ".join(side) + "\n")
                    counts[language].update(side if split == "train" else ())
                pairs += split == "train"
        written += names
    if not pairs:
        raise InputError(f"--max-length {args.max_length} leaves no training pair: give a larger one")
    entries = {}
    for language in LANGUAGES:
        dictionary = word_dictionary(counts[language], args.min_count)
        if dictionary.nspecial == sum(not symbol.startswith("madeupword") for symbol in dictionary.symbols):
            raise InputError(
                f"no word of {language} occurs {args.min_count} times: give a smaller --min-count"
            )
        entries[language] = len(dictionary)
        written.append(f"encoded/dict.{language}.txt")
        with replacing(args.destdir / written[-1]) as temporary:
            dictionary.save(str(temporary))
    return written, {"train": pairs, "dropped": dropped, "entries": entries}


def make_data(args: argparse.Namespace, names: List[str]) -> Tuple[List[str], Dict[str, Any]]:
    """fairseq-preprocess."""
    folder = args.destdir
    parts = {split: [folder / ("encoded" if split == "train" else "plain") / split] for split in PARTS}
    source, target = (folder / "encoded" / f"dict.{language}.txt" for language in LANGUAGES)
    binarise(parts, source, folder, names, args.workers, LANGUAGES, target)
    return names, {}


main = console_script(PROGRAM, build_parser, prepare, place="destdir")


if __name__ == "__main__":
    sys.exit(main())
