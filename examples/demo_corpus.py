"""``luna-demo-corpus``: writes the English-German corpus of the demonstration grammar.

Sentences of the test and validation sets occur nowhere else, on neither side, and no sentence occurs twice. They are
drawn first, so that they stay the same whatever the size of the training set.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from demo_grammar.english import english_sentence
from demo_grammar.german import german_sentence
from demo_grammar.sampling import Sampler

from luna_fairseq.commands.arguments import positive
from luna_fairseq.commands.reporting import reported
from luna_fairseq.errors import InputError

PROGRAM = "luna-demo-corpus"
# Far more draws than pairs mean that the grammar has hardly any new sentences left.
MAX_DRAWS_PER_PAIR = 50

Pair = Tuple[str, str]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point.

    Args:
        argv: command-line arguments, those of the process by default.

    Returns:
        Exit status: 0, or 1 after one line on stderr.
    """
    args = build_parser().parse_args(argv)
    return reported(PROGRAM, lambda: _write(args), args.destdir)


def _write(args: argparse.Namespace) -> None:
    corpus = draw_corpus({"test": args.test, "valid": args.valid, "train": args.train}, args.seed)
    write_corpus(corpus, args.destdir)
    for split in ("train", "valid", "test"):
        print(f"wrote {len(corpus[split]):,} pairs to {args.destdir / split}.en and .de")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.split("\n\n", 1)[1])
    parser.add_argument("--destdir", required=True, type=Path, metavar="DIR", help="folder to write to")
    for split, size in (("train", 16000), ("valid", 500), ("test", 500)):
        parser.add_argument(
            f"--{split}", type=positive, default=size, metavar="N", help=f"{split} pairs (default: {size})"
        )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random generator (default: 1)")
    return parser


def draw_corpus(sizes: Dict[str, int], seed: int) -> Dict[str, List[Pair]]:
    """Draw the splits in the order of ``sizes``; no English and no German sentence occurs twice in all of them.

    Args:
        sizes: split name -> number of pairs.
        seed: seed of the random generator.

    Raises:
        InputError: the grammar has fewer sentences than asked for.
    """
    pairs = _distinct_pairs(seed, sum(sizes.values()))
    return {split: [next(pairs) for _ in range(size)] for split, size in sizes.items()}


def _distinct_pairs(seed: int, number: int) -> Iterator[Pair]:
    sampler = Sampler(seed)
    english_seen, german_seen = set(), set()
    for _ in range(MAX_DRAWS_PER_PAIR * number):
        sentence = sampler.sentence()
        english, german = english_sentence(sentence), german_sentence(sentence)
        if english not in english_seen and german not in german_seen:
            english_seen.add(english)
            german_seen.add(german)
            yield english, german
    raise InputError(f"the grammar does not make {number:,} different sentences: ask for fewer")


def write_corpus(corpus: Dict[str, List[Pair]], folder: Path) -> None:
    """Write ``<split>.en`` and ``<split>.de`` into the folder, one sentence a line.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, pairs in corpus.items():
            for language, sentences in zip(("en", "de"), zip(*pairs)):
                path = folder / f"{split}.{language}"
                temporary = path.with_name(path.name + ".tmp")
                temporary.write_bytes("".join(sentence + "\n" for sentence in sentences).encode("utf-8"))
                os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
