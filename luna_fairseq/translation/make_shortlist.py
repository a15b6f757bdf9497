"""Command ``luna-make-shortlist``: learn which target pieces may translate each source piece.

DATA is a folder of binarised parallel text from luna-prepare-bitext or fairseq-preprocess. The command
estimates IBM model 1 on the training text. The candidates of a source piece are its --best most probable
translations, and the piece itself if it occurs in the target text. The --common most frequent target pieces
are candidates in every sentence. In text of documents, the command reads the single sentences, but not the
document pieces that repeat them.

Give the shortlist to luna-evaluate, fairseq-generate or fairseq-interactive with --shortlist. CTranslate2
reads it, too (--vocab_mapping).

If there is validation text, the command prints how many pieces of its translations are candidates.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_separate
from luna_fairseq.translation.languages import find_language_pairs

PROGRAM = "luna-make-shortlist"
EXAMPLE = f"{PROGRAM} data-bin/en-de --output data-bin/en-de/shortlist"


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    parser.path("data", "folder of the binarised text", "DATA")
    parser.path("--output", "file to write", required=True)
    parser.add_argument("-s", "--source-lang", metavar="LANG", help="source language (default: the data's)")
    parser.add_argument("-t", "--target-lang", metavar="LANG", help="target language (default: the data's)")
    parser.count("--best", 50, "number of translations of each source piece")
    parser.count("--common", 200, "number of candidates for every sentence")
    read = "number of training pairs to read, evenly spaced. Memory and time grow with the number"
    parser.count("--sentences", 100000, read)
    return parser


def find_pair(folder: Path, source: Any, target: Any) -> Tuple[str, str]:
    """Return the source and the target language of the training text in a folder, such as ("en", "de").

    ``source`` and ``target`` are the user's choices, or None. Raise InputError unless one pair matches.
    """
    found = find_language_pairs(folder)
    if source is not None and target is not None:
        # The pair in the file names may have the other order.
        pairs = [(source, target)] if {source, target} in map(set, found) else []
    else:
        pairs = [(s, t) for s, t in found if source in (None, s) and target in (None, t)]
    if len(pairs) == 1:
        return pairs[0]
    if not found:
        raise InputError(
            f"{folder} holds no training text. Give a folder that luna-prepare-bitext or fairseq-preprocess "
            "wrote."
        )
    names = ", ".join("-".join(pair) for pair in found)
    raise InputError(f"{folder} holds the training text of {names}. Give these languages with -s and -t.")


def find_shards(data: Path) -> List[Path]:
    """Return the folders of the training text: DATA/shard0, DATA/shard1 and so on, or DATA itself."""
    shards = {int(path.name[5:]): path for path in data.glob("shard*") if path.name[5:].isdecimal()}
    return [shards[number] for number in sorted(shards) if any(shards[number].glob("*.idx"))] or [data]


def make_shortlist(args: argparse.Namespace) -> None:
    """Write the most probable translations of each source subword, according to IBM model 1, to a file.

    The model is trained on the training text. If there is validation text, print the percentage of its target
    subwords that are candidate translations for their source sentence.
    """
    import numpy as np
    from torch.utils.data import ConcatDataset

    from fairseq.data import Dictionary
    from luna_fairseq.models.shortlist import identify
    from luna_fairseq.progress import progress
    from luna_fairseq.text.documents import SEPARATOR
    from luna_fairseq.text.indexed import read_indexed
    from luna_fairseq.text.lexicon import EVERY_SENTENCE, Lexicon, write_lexicon
    from luna_fairseq.translation.lexical_model import train_lexical_model

    folder, *more_shards = find_shards(args.data)
    for names in ("dict.*.txt", "*.bin", "*.idx"):
        for shard in (args.data, folder, *more_shards):
            check_separate(args.output, "--output", shard.glob(names))
    languages = find_pair(folder, args.source_lang, args.target_lang)
    names = "-".join(languages)
    if not any(folder.glob(f"train.{names}.*.idx")):
        names = "-".join(reversed(languages))
    source, target = (Dictionary.load(str(folder / f"dict.{language}.txt")) for language in languages)

    def exists(folder: Path, split: str) -> bool:
        return (folder / f"{split}.{names}.{languages[0]}.idx").is_file()

    def read(folder: Path, split: str) -> List[Any]:
        files = zip(languages, (source, target))
        return [
            read_indexed(folder / f"{split}.{names}.{side}", words, combine=False) for side, words in files
        ]

    parts = [read(shard, "train") for shard in (folder, *more_shards)]
    for shard in (folder, *more_shards):  # training also reads train1, train2 and so on
        splits = takewhile(partial(exists, shard), (f"train{number}" for number in count(1)))
        parts += [read(shard, split) for split in splits]
    texts = [ConcatDataset(sides) for sides in zip(*parts)]
    indices = np.arange(len(texts[0]))
    if SEPARATOR in source:
        # Document pieces only repeat the sentences, and the lexical model needs much memory for long pairs.
        separator, sides = source.index(SEPARATOR), progress(texts[0], "find sentences", "pairs")
        is_sentence = np.array([not (tokens == separator).any() for tokens in sides], dtype=bool)
        indices = indices[is_sentence] if is_sentence.any() else indices
    length = len(indices)
    numbers = indices[np.arange(min(args.sentences, length)) * length // max(1, min(args.sentences, length))]
    seen = np.zeros(len(target), dtype=np.int64)

    def pairs() -> Any:
        for number in progress(numbers.tolist(), "read", "sentences"):
            first, second = (text[number].numpy() for text in texts)
            np.add.at(seen, second, 1)
            yield first, second[second != target.eos()]

    model = train_lexical_model(pairs(), len(target))
    # Special symbols need no line, because they are candidates in any case.
    usual = [index for index in np.argsort(-seen, kind="stable") if index >= target.nspecial and seen[index]]
    common = [target[i] for i in usual[: args.common]]
    if not common:
        raise InputError(f"the training text of {folder} is empty. Give a folder with training pairs.")
    if SEPARATOR in source and SEPARATOR in target and SEPARATOR not in common:
        common.append(SEPARATOR)
    candidates: Dict[str, Sequence[str]] = {EVERY_SENTENCE: common}
    for index in np.unique(model.sources):
        pieces = [target[i] for i in model.best(index, args.best) if i >= target.nspecial]
        itself = source[index]
        if itself in target and itself not in pieces and seen[target.index(itself)]:
            pieces.append(itself)
        if pieces:
            candidates[itself] = pieces
    write_lexicon(args.output, Lexicon(candidates, "-".join(languages), identify(source), identify(target)))
    print(
        f"{args.output}: {len(candidates) - 1:,} source pieces with up to {args.best} candidates, "
        f"{len(common)} candidates for every sentence; from {len(numbers):,} of {length:,} pairs"
    )
    if exists(folder, "valid"):
        print(describe_coverage(args.output, read(folder, "valid"), source, target))


def describe_coverage(path: Path, texts: Sequence[Any], source: Any, target: Any) -> str:
    """Return a line with the percentage of validation target tokens that a shortlist allows.

    A subword is allowed if it is a candidate translation for its source sentence. The line also states the
    mean number of candidates per sentence. ``path`` is the shortlist file. ``texts`` are the datasets of
    source and target tokens, and ``source`` and ``target`` are their dictionaries.
    """
    import torch

    from luna_fairseq.models.shortlist import Shortlist

    shortlist = Shortlist.load(str(path), source, target)
    covered = tokens = width = 0
    for first, second in zip(*texts):
        candidates = shortlist.find_candidates(first)
        width += len(candidates)
        tokens += len(second)
        covered += int(torch.isin(second, candidates).sum())
    return (
        f"valid: {100 * covered / max(tokens, 1):.2f} % of {tokens:,} target pieces are candidates; "
        f"{width / max(len(texts[0]), 1):.0f} of {len(target):,} pieces a sentence"
    )


main = console_script(PROGRAM, build_parser, make_shortlist, path_argument="output", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
