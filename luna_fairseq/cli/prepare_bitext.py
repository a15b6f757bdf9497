"""``luna-prepare-bitext``: from parallel text to the folder that fairseq-train reads.

Checks the text, learns a joint byte-pair encoding on the training part (sentencepiece, reversible), encodes all parts
and calls fairseq-preprocess with a joint dictionary. Training pairs with an empty side are dropped and counted. In
validation and test text they are an error: scores count every line, so no line may vanish. DIR then holds the
binarised data, the model as sentencepiece.bpe.model, and the encoded text. Started again, it does only what is left or
what has changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import sentencepiece
from tqdm import tqdm

from luna_fairseq.cli.arguments import positive
from luna_fairseq.data.bitext import Bitext, check_bitext
from luna_fairseq.data.finished_steps import FinishedSteps, digest, replacing
from luna_fairseq.data.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.errors import InputError

PROGRAM = "luna-prepare-bitext"
MODEL = "sentencepiece.bpe.model"
DICTIONARY = "dict.txt"
BATCH_LINES = 10000
# Part of every key: a change of what a step does must not take the old output for finished.
VERSION = 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point.

    Args:
        argv: command-line arguments, those of the process by default.

    Returns:
        Exit status: 0, or 1 after one line on stderr.
    """
    args = build_parser().parse_args(argv)
    try:
        Preparation(args).run()
    except InputError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{PROGRAM}: error: {error.filename or args.destdir}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument(
        "-s", "--source-lang", required=True, metavar="LANG", help="source language, a suffix"
    )
    parser.add_argument(
        "-t", "--target-lang", required=True, metavar="LANG", help="target language, a suffix"
    )
    parser.add_argument(
        "--trainpref",
        required=True,
        metavar="PREFIX",
        help="training text, as PREFIX.LANG for both languages",
    )
    parser.add_argument(
        "--validpref", required=True, metavar="PREFIX", help="validation text; several: separated by commas"
    )
    parser.add_argument("--testpref", metavar="PREFIX", help="test text; several: separated by commas")
    parser.add_argument(
        "--vocab-size", required=True, type=positive, metavar="N", help="pieces of the encoding"
    )
    parser.add_argument("--destdir", required=True, type=Path, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--workers",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one for each core); the output does not depend on it",
    )
    return parser


class Preparation:
    """One run of the command: check, learn, encode, binarise.

    Args:
        args: the parsed command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        if args.source_lang == args.target_lang:
            raise InputError(f"--source-lang and --target-lang are both {args.source_lang}")
        self.args = args
        self.languages = (args.source_lang, args.target_lang)
        self.prefixes = {"train": args.trainpref}
        for split, prefixes in (("valid", args.validpref), ("test", args.testpref)):
            for number, prefix in enumerate(prefixes.split(",") if prefixes else ()):
                self.prefixes[f"{split}{number or ''}"] = prefix

    def run(self) -> None:
        """Do all steps that are not finished yet, and print the counts."""
        text = {split: self._check(split, prefix) for split, prefix in self.prefixes.items()}
        owned = [MODEL, *self._binarised()]
        self.steps = FinishedSteps(self.args.destdir, "prepare_bitext.json", owned)
        key = digest(VERSION, text["train"].digest, self.args.vocab_size, sentencepiece.__version__)
        self._step("learn", key, lambda: self._learn(text["train"]))
        key = digest(key, {split: part.digest for split, part in text.items()})
        facts = self._step("encode", key, lambda: self._encode(text))
        self._step("binarise", digest(key, self.languages), self._binarise)
        for split, part in text.items():
            tokens = ", ".join(f"{facts[f'{split}.{language}']:,} {language}" for language in self.languages)
            dropped = f", {part.empty:,} dropped (an empty side)" if split == "train" else ""
            print(f"{split}: {part.lines - part.empty:,} pairs, tokens: {tokens}{dropped}")
        print(f"dictionary: {facts['dictionary']:,} entries; data in {self.args.destdir}")

    def _step(self, name: str, key: str, work: Any) -> Dict[str, Any]:
        facts = self.steps.find(name, key)
        if facts is not None:
            print(f"{name}: finished before")
            return facts
        print(f"{name} ...", flush=True)
        self.steps.forget(name)
        files, facts = work()
        self.steps.record(name, key, files, facts)
        return facts

    def _check(self, split: str, prefix: str) -> Bitext:
        def progress(pairs: Iterator) -> Iterator:
            return _progress(pairs, f"check {split}")

        return check_bitext(prefix, *self.languages, drop_empty=split == "train", progress=progress)

    def _learn(self, train: Bitext) -> Tuple[List[str], Dict[str, Any]]:
        lines = chain.from_iterable(_progress(train.pairs(), "learn"))
        model = learn_bpe(lines, self.args.vocab_size)
        with replacing(self.args.destdir / MODEL) as temporary:
            temporary.write_bytes(model)
        return [MODEL], {}

    def _encode(self, text: Dict[str, Bitext]) -> Tuple[List[str], Dict[str, Any]]:
        model = sentencepiece.SentencePieceProcessor(model_file=str(self.args.destdir / MODEL))
        counts: Counter = Counter()
        facts: Dict[str, Any] = {}
        for split, part in text.items():
            for side, language in enumerate(self.languages):
                lines = (pair[side] for pair in _progress(part.pairs(), f"encode {split}.{language}"))
                path = self._encoded(split, language)
                pieces: Counter = Counter()
                with replacing(path) as temporary, temporary.open(
                    "w", encoding="utf-8", newline="\n"
                ) as file:
                    for encoded in self._encoded_lines(model, lines):
                        pieces.update(encoded)
                        file.write(" ".join(encoded) + "\n")
                facts[f"{split}.{language}"] = sum(pieces.values())
                counts.update(pieces if split == "train" else {})
        dictionary = bpe_dictionary(model, counts)
        with replacing(self.args.destdir / "encoded" / DICTIONARY) as temporary:
            dictionary.save(str(temporary))
        facts["dictionary"] = len(dictionary)
        names = [f"encoded/{split}.{language}" for split in text for language in self.languages]
        return [*names, f"encoded/{DICTIONARY}"], facts

    def _encoded_lines(
        self, model: sentencepiece.SentencePieceProcessor, lines: Iterator[str]
    ) -> Iterator[List[str]]:
        for batch in iter(lambda: list(islice(lines, BATCH_LINES)), []):
            yield from model.encode(batch, out_type=str, num_threads=self.args.workers)

    def _encoded(self, split: str, language: str) -> Path:
        return self.args.destdir / "encoded" / f"{split}.{language}"

    def _binarise(self) -> Tuple[List[str], Dict[str, Any]]:
        folder = self.args.destdir / "binarise.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "fairseq_cli.preprocess", *self._preprocess_options(folder)]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode:
            raise InputError(f"fairseq-preprocess failed:\n{result.stdout.strip()}")
        for name in self._binarised():
            os.replace(folder / name, self.args.destdir / name)
        shutil.rmtree(folder)
        return self._binarised(), {}

    def _preprocess_options(self, folder: Path) -> List[str]:
        encoded = self.args.destdir / "encoded"
        options = ["--source-lang", self.args.source_lang, "--target-lang", self.args.target_lang]
        options += ["--joined-dictionary", "--srcdict", str(encoded / DICTIONARY), "--destdir", str(folder)]
        options += ["--workers", str(self.args.workers)]
        for kind in ("train", "valid", "test"):
            prefixes = [str(encoded / split) for split in self.prefixes if split.startswith(kind)]
            options += [f"--{kind}pref", ",".join(prefixes)] if prefixes else []
        return options

    def _binarised(self) -> List[str]:
        pair = "-".join(self.languages)
        names = [f"dict.{language}.txt" for language in self.languages]
        for split in self.prefixes:
            names += [
                f"{split}.{pair}.{language}.{end}" for language in self.languages for end in ("bin", "idx")
            ]
        return names


def _progress(items: Iterable, description: str) -> Iterator:
    """Show progress on a terminal; a log file would fill with it."""
    return iter(tqdm(items, desc=description, unit=" pairs", mininterval=1.0, leave=False, disable=None))


if __name__ == "__main__":
    sys.exit(main())
