"""``luna-prepare-bitext``: from parallel text to the folder that fairseq-train reads.

Checks the text, learns a joint byte-pair encoding on the training part, encodes all parts and writes them
with a joint dictionary as fairseq-preprocess does. Training pairs with an empty side are dropped and counted.
In validation and test text they are an error: scores count every line, so no line may vanish. DIR then holds
the data (with --shards in DIR/shard0, DIR/shard1, ...; an epoch of training reads one of them), the encoding
(sentencepiece.bpe.model, or bpe.codes), and plain copies of the validation and test text. Started again, it
does only what is left or what has changed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT, digest, forget_checksums, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.writing import replacing, replacing_lines
from luna_fairseq.progress import progress
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.bitext import Bitext, check_bitext, read_lines
from luna_fairseq.text.documents import IDS, SEPARATOR, Piece, document_lengths, in_pieces, write_pieces
from luna_fairseq.text.encoders import LINES, Encoder, check_unknown, share_unknown
from luna_fairseq.text.indexed import Encoded, chosen
from luna_fairseq.text.length_filter import LengthFilter
from luna_fairseq.text.subword import ROUTES
from luna_fairseq.translation.pair_data import PairData

PROGRAM = "luna-prepare-bitext"
# Part of every key: a change of what a step does must not take the old output for finished.
VERSION = 6
# Options that decide what a model learns.
DECIDES = ("source_lang", "target_lang", "vocab_size", "subword", "max_length", "max_ratio", "documents")
# Positions of the presets (--max-source-positions, --max-target-positions), one being the sentence's end.
POSITIONS = 1024
SKIP = "--skip-invalid-size-inputs-valid-test"


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    add = parser.add_argument
    add("-s", "--source-lang", required=True, metavar="LANG", help="source language, a suffix")
    add("-t", "--target-lang", required=True, metavar="LANG", help="target language, a suffix")
    train = "training text, as PREFIX.LANG for both languages"
    add("--trainpref", required=True, metavar="PREFIX", help=train)
    several = "several: separated by commas"
    add("--validpref", required=True, metavar="PREFIX", help=f"validation text; {several}")
    add("--testpref", metavar="PREFIX", help=f"test text; {several}")
    parser.count("--vocab-size", None, "pieces of the encoding (moses: merges)", required=True)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    add_text_arguments(parser)
    parser.count(
        "--documents",
        None,
        "the text has documents, divided by empty lines or named in PREFIX.doc, a line each: join their "
        "sentences to pieces of up to N source tokens (training text: of up to N on both sides, with the "
        "single sentences beside them)",
    )
    return parser


def add_text_arguments(parser: CommandParser) -> None:
    """Options of every command that ends in a ``Preparation``."""
    add = parser.add_argument
    add(
        "--subword",
        choices=list(ROUTES),
        default="sentencepiece",
        help="sentencepiece: raw text, reversible (default). moses: punctuation normalised, tokenised with "
        "hyphens split (sacremoses), then subword-nmt",
    )
    parser.count("--max-length", None, "drop training pairs with a side of more than N pieces")
    ratio = "drop training pairs of which one side has more than R times the pieces of the other"
    add("--max-ratio", type=Number(float, least=1), metavar="R", help=ratio)
    parser.count("--shards", 1, "parts of the training text")
    parser.max_unknown()
    parser.workers()


class Preparation:
    """One run of the command: check, tokenise if so asked, learn, encode.

    Args:
        args: the parsed command line.
        route: from text to pieces (default: the one of ``--subword``).

    Raises:
        InputError: source and target are one language.
    """

    def __init__(self, args: argparse.Namespace, route: Any = None) -> None:
        if args.source_lang == args.target_lang:
            raise InputError(f"--source-lang and --target-lang are both {args.source_lang}")
        self.args = args
        self.route: Any = route or ROUTES[args.subword]
        self.models = list(filter(None, [self.route.model_file]))
        self.model = args.destdir / self.route.model_file
        self.languages = (args.source_lang, args.target_lang)
        self.text: Dict[str, Bitext] = {}
        self.documents: Dict[str, List[int]] = {}
        self.pieces: Dict[str, List[Piece]] = {}
        self.prefixes = {"train": args.trainpref}
        for split, prefixes in (("valid", args.validpref), ("test", args.testpref)):
            for number, prefix in enumerate(prefixes.split(",") if prefixes else ()):
                self.prefixes[f"{split}{number or ''}"] = prefix
        lengths = LengthFilter(args.max_length, args.max_ratio)
        self.data = PairData(args.destdir, self.languages, self.prefixes, lengths, args.shards)

    def check(self) -> None:
        """Read all text, before anything is written."""
        apart = self.args.documents is not None  # empty lines divide documents then
        for split, prefix in self.prefixes.items():
            by_lines = apart and not Path(f"{prefix}.{IDS}").is_file()
            may_be_empty = apart or split == "train"
            self.text[split] = check_bitext(prefix, *self.languages, may_be_empty, by_lines)
            if apart:
                self.documents[split] = document_lengths(prefix, self.text[split])

    def identity(self) -> Dict[str, str]:
        """What a model that is trained on the text depends on; see
        :func:`luna_fairseq.files.same_run.same_run`."""
        what = {"training text": f"{CONTENT}{self.text['train'].digest}"}
        for name in DECIDES:
            if getattr(self.args, name) is not None:
                what[f"--{name.replace('_', '-')}"] = str(getattr(self.args, name))
        return what

    def run(self) -> None:
        """Do all steps that are not finished yet, and print the counts."""
        if not self.text:
            self.check()
        owned = [*self.models, *self.data.names()]
        steps = FinishedSteps(self.args.destdir, "prepare_bitext.json", owned)
        digests = {split: part.digest for split, part in self.text.items()}
        key = digest(VERSION, self.route.name, self.route.versions, self.languages)
        if self.route.tokenize:
            steps.do("tokenise", digest(key, digests), self._tokenise)
        key = digest(key, digests["train"], self.args.vocab_size)
        if self.models:
            steps.do("learn", key, self._learn)
        key = digest(key, digests, self.args.max_length, self.args.max_ratio)
        if self.documents:
            key = digest(key, self.args.documents, self.documents)
        facts = steps.do("encode", digest(key, self.args.shards), self._encode)
        check_unknown(facts["unknown"], facts["tokens"], self.args.max_unknown)
        self.longest = facts["longest"]
        self._report(facts)

    def _report(self, facts: Dict[str, Any]) -> None:
        for split, part in self.text.items():
            sides = [f"{split}.{language}" for language in self.languages]
            tokens = ", ".join(f"{facts['tokens'][side]:,} {side.split('.')[1]}" for side in sides)
            reasons = Counter(facts["dropped"]) if split == "train" else Counter()
            dropped = "".join(f", {number:,} dropped ({reason})" for reason, number in reasons.items())
            if self.documents:
                documents, pieces = self.documents[split], facts["pieces"][split]
                found = f"{sum(documents):,} sentences of {len(documents):,} documents in {pieces:,} pieces"
            else:
                found = f"{part.lines - part.empty - sum(reasons.values()):,} pairs"
                dropped += f", {part.empty:,} dropped (an empty side)" if part.empty else ""
            print(f"{split}: {found}, tokens: {tokens}{dropped}")
            if part.controls:
                print(f"{split}: control characters or U+2581 in {part.controls:,} lines were read as spaces")
            for side in sides:
                if facts["unknown"][side]:
                    print(f"{side}: {share_unknown(facts['unknown'][side], facts['tokens'][side])}")
            longest = max(self.longest[side] for side in sides)
            if longest >= POSITIONS:
                training = split == "train"
                print(
                    f"{split}: the longest side has {longest:,} pieces, and the presets read {POSITIONS:,} "
                    f"with its end: fairseq {'leaves it out' if training else 'refuses it'} unless "
                    f"--max-source-positions and --max-target-positions are {longest + 1} or more"
                    f"{' (--max-length drops such pairs here)' if training else ''}"
                )
        entries = facts["dictionary"]
        sizes = [f"{entries[language]:,} {language}" for language in self.languages]
        if self.route.is_joint:
            sizes = [f"{entries[self.languages[0]]:,}"]
        print(f"dictionary: {', '.join(sizes)} entries; data for fairseq-train: {self.data.path}")
        if "valid1" in self.text:
            named = ",".join(split for split in self.text if split.startswith("valid"))
            print(
                f"several validation texts: give fairseq-train --valid-subset {named} "
                "--ignore-unused-valid-subsets"
            )

    def check_positions(self, options: Mapping[str, str]) -> None:
        """Raise InputError where fairseq would refuse a text at the end of training; ``options`` are
        fairseq-train's."""
        for split in self.text:
            if split == "train" or (split.startswith("valid") and SKIP in options):
                continue
            for side, language in zip(("source", "target"), self.languages):
                positions = int(options.get(f"--max-{side}-positions", POSITIONS))
                longest = self.longest[f"{split}.{language}"]
                if longest >= positions:
                    raise InputError(
                        f"{self.prefixes[split]}.{language} has a line of {longest:,} pieces, and the model "
                        f"reads {positions:,} with its end: split the line, or train with "
                        f"-- --max-source-positions {longest + 1} --max-target-positions {longest + 1}"
                    )

    def _tokenise(self) -> Tuple[List[str], Dict[str, Any]]:
        names, tokenize = [], partial(self.route.tokenize, self.languages)
        for split, part in self.text.items():
            pairs = progress(part.pairs(), f"tokenise {split}")
            names += self._write("tokenised", split, map_batches(tokenize, pairs, self.args.workers))
        return names, {}

    def _pairs(self, split: str, description: str) -> Iterator[Tuple[str, str]]:
        """The pairs that the encoding is learnt from and applied to."""
        if not self.route.tokenize:
            return progress(self.text[split].pairs(), description)
        paths = [self.args.destdir / "tokenised" / f"{split}.{language}" for language in self.languages]
        return progress(zip(*map(read_lines, paths)), description)

    def _learn(self) -> Tuple[List[str], Dict[str, Any]]:
        lines = chain.from_iterable(self._pairs("train", "learn"))
        model = self.route.learn(lines, self.args.vocab_size)
        with replacing(self.model) as temporary:
            temporary.write_bytes(model)
        return self.models, {}

    def _encode(self) -> Tuple[List[str], Dict[str, Any]]:
        forget_checksums(self.args.destdir)
        separators = [SEPARATOR] if self.documents else []
        facts = self.data.write(self.route, self.model, self._batches, separators, self.args.max_unknown)
        names = self.data.names()
        for split in self.prefixes:
            if split != "train":
                names += self._write("plain", split, self.text[split].pairs())
        for split, pieces in self.pieces.items():
            if split != "train":
                names.append(f"plain/{split}.pieces")
                write_pieces(self.args.destdir / names[-1], pieces)
        names.append(write_checksums(self.args.destdir, [*names, *self.models]))
        facts["pieces"] = {split: len(pieces) for split, pieces in self.pieces.items()}
        return names, facts

    def _batches(self, split: str, encoder: Encoder) -> Iterator[List[Encoded]]:
        """Sentences, or pieces of documents, of both sides as numbers."""
        lines = chain.from_iterable(self._pairs(split, f"encode {split}"))
        sentences = (
            [chosen(batch, np.arange(len(batch[1])) % 2 == side) for side in (0, 1)]
            for batch in encoder.encode(lines)
        )
        if not self.documents:
            yield from sentences
            return
        self.pieces[split] = []
        limit, separator, training = self.args.documents, encoder.add(SEPARATOR), split == "train"
        found = in_pieces(sentences, self.documents[split], limit, separator, training)
        for batch in iter(lambda: list(islice(found, LINES)), []):
            self.pieces[split] += [piece for piece, _ in batch if piece is not None]
            sides = zip(*(numbers for _, numbers in batch))
            yield [(np.concatenate(side), np.array(list(map(len, side)))) for side in sides]

    def _write(self, folder: str, split: str, pairs: Iterable[Sequence[str]]) -> List[str]:
        """Write pairs of lines to two files of DIR/folder; returns their names."""
        names = [f"{folder}/{split}.{language}" for language in self.languages]
        with replacing_lines([self.args.destdir / name for name in names]) as files:
            for pair in pairs:
                for file, line in zip(files, pair):
                    file.write(line + "\n")
        return names


main = console_script(PROGRAM, build_parser, lambda args: Preparation(args).run(), place="destdir")


if __name__ == "__main__":
    sys.exit(main())
