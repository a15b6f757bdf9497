"""``luna-score``: BLEU and chrF of what fairseq-generate printed.

Puts the hypotheses in the order of the sentences, checks that none is missing and that reference and source
are those of FILE's T- and S- lines, and compares them, as plain text, with the plain reference:
``fairseq-generate`` itself scores pieces against pieces. FILE is its output (or the generate-*.txt of
--results-path), made with --remove-bpe sentencepiece (or subword_nmt), so that hypotheses are words.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import List, Optional

from sacrebleu.metrics import BLEU

from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.translation.generated import Generated
from luna_fairseq.translation.scores import (
    TEST_SETS,
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
        "of what luna-evaluate made of documents, whose pieces this file of luna-prepare-bitext --documents "
        "names: print BLEU of sentences (s-BLEU) and of documents, each joined to a line (d-BLEU)",
    )
    add_shown(parser)
    return parser


def add_shown(parser: CommandParser) -> None:
    """Options of every command that ends in :func:`score`."""
    test_set = "refuse a reference that is not this test set's (default: %(default)s)"
    parser.add_argument("--test-set", choices=[*TEST_SETS, "none"], default="none", help=test_set)
    shown = "translations to show (default: %(default)s)"
    parser.add_argument("--samples", type=Number(int, least=0), default=0, metavar="N", help=shown)


def score(args: argparse.Namespace) -> None:
    """Score one file, print the scores and write what was asked for.

    Raises:
        InputError: a file is missing or does not fit.
        OSError: a file cannot be written.
    """
    if args.target_lang is None and (args.detokenize or args.split_compounds):
        raise InputError("--detokenize and --split-compounds need --target-lang")
    references = list(read_lines(args.reference))
    generated = Generated(args.generated)
    pieces = read_pieces(args.documents) if args.documents else []
    if pieces and len(generated.best) == len(pieces) < len(references):
        raise InputError(
            f"{args.generated} has a translation of each piece, not of each sentence: give what "
            "luna-evaluate made of them, generate-test-lenpen*.txt in its --results"
        )
    hypotheses = generated.hypotheses(references)
    sources = list(read_lines(args.source)) if args.source else None
    if sources is not None and len(sources) != len(references):
        raise InputError(
            f"{args.source} has {len(sources)} lines and {args.reference} has {len(references)}: they must "
            "be of one text"
        )
    notes = generated.compare(args.reference, references, args.source, sources or [])
    print(*(f"note: {note}\n" for note in [*generated.notes, *notes]), sep="", end="")
    text = Translations.read(hypotheses, references, args.detokenize, args.target_lang)
    test_set = TEST_SETS.get(args.test_set)
    scores = plain_scores(text, args.tokenize, test_set)
    if args.documents:
        scores[:1] = document_scores(text, pieces, scores[0], args.tokenize)
    if args.bleu_1:
        scores.append(unigram_score(text, args.tokenize))
    if args.split_compounds:
        scores.append(split_score(text, args.target_lang, test_set))
    for one in scores:
        print(f"{one.details}  signature: {one.signature}")
    exact = sum(hypothesis == reference for hypothesis, reference in zip(text.hypotheses, references))
    print(f"identical to the reference: {exact} of {len(references)}")
    _show_samples(text, sources, args.samples)
    if args.output:
        write_text(args.output, "".join(f"{line}\n" for line in text.hypotheses))
    if args.scores:
        write_text(args.scores, json.dumps([asdict(one) for one in scores], indent=1) + "\n")


def _show_samples(text: Translations, sources: Optional[List[str]], number: int) -> None:
    """Print so many translations from all over the text beside their sources, if given, and references."""
    number = min(max(number, 0), len(text.hypotheses))
    for index in (step * len(text.hypotheses) // number for step in range(number)):
        print(f"\n[{index + 1}]")
        if sources is not None:
            print(f"  source     {sources[index]}")
        print(f"  hypothesis {text.hypotheses[index]}\n  reference  {text.references[index]}")


main = console_script(PROGRAM, build_parser, score)


if __name__ == "__main__":
    sys.exit(main())
