"""``luna-score``: BLEU and chrF of what fairseq-generate printed.

Puts the hypotheses in the order of the sentences, checks that none is missing and that reference and source
are
those of FILE's T- and S- lines, and compares them, as plain text, with the plain reference:
``fairseq-generate`` itself scores pieces against pieces. FILE is its output
(or the generate-*.txt of --results-path), made with --remove-bpe sentencepiece (or subword_nmt), so that
hypotheses are words.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import List, Optional

from sacrebleu.metrics import BLEU

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.translation.generated import Generated
from luna_fairseq.translation.scores import (
    TEST_SETS,
    Score,
    Translations,
    document_scores,
    plain_scores,
    split_score,
    unigram_score,
)

PROGRAM = "luna-score"


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    add = parser.add_argument
    parser.path("generated", "output of fairseq-generate")
    parser.path("--reference", "plain reference text", required=True)
    parser.path("--source", "plain source text, to show beside the samples")
    parser.path("--output", "write the plain hypotheses to this file, one a line")
    parser.path("--scores", "write the scores to this file, as JSON")
    add(
        "--tokenize",
        choices=sorted(BLEU.TOKENIZERS),
        default=BLEU.TOKENIZER_DEFAULT,
        help="sacreBLEU's tokenizer (default: %(default)s)",
    )
    bleu_1 = "print BLEU of single words, too (of text that is tokenised: with --tokenize none)"
    add("--bleu-1", action="store_true", help=bleu_1)
    add(
        "--detokenize",
        choices=["moses"],
        help="the hypotheses are Moses tokens, as a system writes that was trained on text prepared with "
        "--subword moses: make plain text of them first",
    )
    add(
        "--split-compounds",
        action="store_true",
        help="print BLEU of Moses tokens with hyphens split, too, the kind that the literature reports for "
        "WMT'14",
    )
    add("--target-lang", metavar="LANG", help="language, for --detokenize and --split-compounds")
    parser.path(
        "--documents",
        "the text has documents, whose pieces this file of luna-prepare-bitext --documents names: print "
        "BLEU of sentences (s-BLEU) and of documents, each joined to a line (d-BLEU)",
    )
    add_shown(parser)
    return parser


def add_shown(parser: CommandParser) -> None:
    """Options of every command that ends in :func:`score`."""
    test_set = "refuse a reference that is not this test set's (default: %(default)s)"
    parser.add_argument("--test-set", choices=[*TEST_SETS, "none"], default="none", help=test_set)
    shown = "translations to show (default: %(default)s)"
    parser.add_argument("--samples", type=int, default=0, metavar="N", help=shown)


def score(args: argparse.Namespace) -> List[Score]:
    """Score one file and write what was asked for.

    Args:
        args: the parsed command line.

    Returns:
        the scores that were printed.

    Raises:
        InputError: a file is missing or does not fit.
        OSError: a file cannot be written.
    """
    if args.target_lang is None and (args.detokenize or args.split_compounds):
        raise InputError("--detokenize and --split-compounds need --target-lang")
    references = list(read_lines(args.reference))
    generated = Generated(args.generated)
    hypotheses = generated.hypotheses(references)
    sources = _read_sources(args.source, args.reference, len(references))
    notes = generated.compare(args.reference, references, args.source, sources or [])
    print(*(f"note: {note}\n" for note in [*generated.notes, *notes]), sep="", end="")
    text = Translations.read(hypotheses, references, args.detokenize, args.target_lang)
    test_set = TEST_SETS.get(args.test_set)
    scores = plain_scores(text, args.tokenize, test_set)
    if args.documents:
        scores[:1] = document_scores(text, read_pieces(args.documents), scores[0], args.tokenize)
    if args.bleu_1:
        scores.append(unigram_score(text, args.tokenize))
    if args.split_compounds:
        scores.append(split_score(text, args.target_lang, test_set))
    for one in scores:
        print(f"{one.details}  signature: {one.signature}")
    exact = sum(hypothesis == reference for hypothesis, reference in zip(text.hypotheses, references))
    print(f"identical to the reference: {exact} of {len(references)}")
    show_samples(text.hypotheses, references, sources, args.samples)
    if args.output:
        write_text(args.output, "".join(f"{line}\n" for line in text.hypotheses))
    if args.scores:
        write_text(args.scores, json.dumps([one.as_dict() for one in scores], indent=1) + "\n")
    return scores


def _read_sources(path: Optional[Path], reference: Path, number: int) -> Optional[List[str]]:
    if path is None:
        return None
    lines = list(read_lines(path))
    if len(lines) != number:
        raise InputError(
            f"{path} has {len(lines)} lines and {reference} has {number}: they must be of one text"
        )
    return lines


def show_samples(
    hypotheses: List[str], references: List[str], sources: Optional[List[str]], number: int
) -> None:
    """Print translations from all over the text beside their references.

    Args:
        hypotheses: one translation a sentence.
        references: the references, in the same order.
        sources: the source sentences, if there are any to show.
        number: how many to show.
    """
    number = min(max(number, 0), len(hypotheses))
    for index in (step * len(hypotheses) // number for step in range(number)):
        print(f"\n[{index + 1}]")
        if sources is not None:
            print(f"  source     {sources[index]}")
        print(f"  hypothesis {hypotheses[index]}")
        print(f"  reference  {references[index]}")


main = console_script(PROGRAM, build_parser, lambda args: score(args))


if __name__ == "__main__":
    sys.exit(main())
