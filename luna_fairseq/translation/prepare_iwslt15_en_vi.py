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
from itertools import chain
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from luna_fairseq.commands.arguments import add_workers, positive
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import forget_checksums, write_checksums
from luna_fairseq.files.download import RemoteFile, fetch
from luna_fairseq.files.finished_steps import FinishedSteps, digest
from luna_fairseq.files.writing import replace_file, replacing_lines
from luna_fairseq.progress import progress
from luna_fairseq.text.bitext import Bitext, check_bitext
from luna_fairseq.text.dictionaries import dictionary_of_text
from luna_fairseq.text.encoders import Encoder, counts_of, share_unknown, words_encoder
from luna_fairseq.text.indexed import chosen, encoded_texts
from luna_fairseq.text.length_filter import LengthFilter

PROGRAM = "luna-prepare-iwslt15-en-vi"
SITE = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
LANGUAGES = ("en", "vi")
# Split -> name of the published files, without the language, and their lines.
PARTS = {"train": ("train", 133317), "valid": ("tst2012", 1553), "test": ("tst2013", 1268)}
# Part of every key: a change of what a step does must not take the old output for finished.
VERSION = 2


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
    steps = FinishedSteps(args.destdir, "prepare_iwslt15.json", binarised())
    digests = [part.digest for part in text.values()]
    key = digest(VERSION, digests, args.max_length, args.min_count)
    facts = steps.do("encode", key, partial(encode, args, text))
    dropped = "".join(f", {number:,} dropped ({reason})" for reason, number in facts["dropped"].items())
    print(f"train: {facts['train']:,} pairs{dropped}")
    for split in ("valid", "test"):
        print(f"{split}: {text[split].lines:,} pairs")
    sizes = ", ".join(f"{facts['entries'][language]:,} {language}" for language in LANGUAGES)
    print(*(f"{name}: {said}" for name, said in facts["unknown"].items()), sep="\n")
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
    """Write both dictionaries, the training text that stays and the rest as fairseq's files, and plain
    text."""
    dropped: Counter = Counter({"an empty side": text["train"].empty} if text["train"].empty else {})
    forget_checksums(args.destdir)
    encoder = words_encoder()
    entries, unknown = {}, {}
    with encoded_texts(
        args.destdir / "encode.tmp", [(s, side) for s in PARTS for side in LANGUAGES]
    ) as texts:
        pairs = sum(encode_part(split, part, encoder, texts, args, dropped) for split, part in text.items())
        if not pairs:
            raise InputError(f"--max-length {args.max_length} leaves no training pair: give a larger one")
        for side in LANGUAGES:
            dictionary = dictionary_of_text(counts_of(encoder, [texts["train", side]]), args.min_count)
            if all(symbol.startswith("madeupword") for symbol in dictionary.symbols[dictionary.nspecial :]):
                raise InputError(
                    f"no word of {side} occurs {args.min_count} times: give a smaller --min-count"
                )
            replace_file(args.destdir / f"dict.{side}.txt", lambda path, of=dictionary: of.save(str(path)))
            entries[side] = len(dictionary)
            table = encoder.table(dictionary)
            for split in PARTS:
                texts[split, side].write(
                    args.destdir / f"{split}.{'-'.join(LANGUAGES)}.{side}", table, dictionary
                )
                counted = texts[split, side].unknown(table, dictionary), int(texts[split, side].counts.sum())
                unknown[f"{split}.{side}"] = share_unknown(*counted)
    plain = [f"plain/{split}.{side}" for split in ("valid", "test") for side in LANGUAGES]
    for name, split in zip(plain[::2], ("valid", "test")):
        with replacing_lines([args.destdir / name for name in plain if f"/{split}." in name]) as files:
            for pair in text[split].pairs():
                for side, file in zip(pair, files):
                    file.write(" ".join(side.split()) + "\n")
    names = [*binarised(), *plain]
    names.append(write_checksums(args.destdir, names))
    return names, {"train": pairs, "dropped": dropped, "entries": entries, "unknown": unknown}


def encode_part(
    split: str, text: Bitext, encoder: Encoder, texts: Any, args: argparse.Namespace, dropped: Counter
) -> int:
    """Number the words of a part; the number of pairs that stay, of training text."""
    kept, pairs = LengthFilter(args.max_length), 0
    for batch in encoder.encode(chain.from_iterable(progress(text.pairs(), f"encode {split}"))):
        sides = [chosen(batch, np.arange(len(batch[1])) % 2 == side) for side in (0, 1)]
        if split == "train":
            stays = kept.kept(sides[0][1], sides[1][1], dropped)
            sides = [chosen(side, stays) for side in sides]
            pairs += int(stays.sum())
        for language, side in zip(LANGUAGES, sides):
            texts[split, language].add(*side)
    return pairs


def binarised() -> List[str]:
    """Names of fairseq's files."""
    files = [f"{split}.{'-'.join(LANGUAGES)}.{side}" for split in PARTS for side in LANGUAGES]
    return [
        *(f"dict.{side}.txt" for side in LANGUAGES),
        *(f"{name}.{end}" for name in files for end in ("bin", "idx")),
    ]


main = console_script(PROGRAM, build_parser, prepare, place="destdir")


if __name__ == "__main__":
    sys.exit(main())
