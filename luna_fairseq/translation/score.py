"""Command ``luna-score``: compute BLEU and chrF of the translations that fairseq-generate printed.

The command sorts the hypotheses by sentence and checks that none is missing. It compares the reference and
the source with the T- and S- lines of FILE. It then scores plain text against the plain reference, whereas
fairseq-generate itself scores subword pieces.

FILE is the output of fairseq-generate (or generate-*.txt of --results-path). Run fairseq-generate with
--remove-bpe sentencepiece (or subword_nmt), so that hypotheses are words.
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
from luna_fairseq.translation.generated import GenerateOutput
from luna_fairseq.translation.scores import (
    TEST_SETS,
    Translations,
    document_scores,
    plain_scores,
    split_score,
    unigram_score,
)

PROGRAM = "luna-score"
EXAMPLE = f"{PROGRAM} generate-test.txt --reference data/plain/test.de --samples 5 --scores scores.json"


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    add = parser.add_argument
    parser.path("generated", "output of fairseq-generate")
    parser.path("--reference", "plain reference text", required=True)
    parser.path("--source", "plain source text, shown beside the samples (default: not shown)")
    parser.path("--output", "file to write the plain hypotheses to, one a line (default: none)")
    parser.path("--scores", "JSON file to write the scores to (default: none)")
    add(
        "--tokenize",
        choices=sorted(BLEU.TOKENIZERS),
        default=BLEU.TOKENIZER_DEFAULT,
        help="sacreBLEU's tokenizer (default: %(default)s)",
    )
    bleu_1 = "also print BLEU of single words (for tokenised text, add --tokenize none)"
    add("--bleu-1", action="store_true", help=bleu_1)
    add(
        "--detokenize",
        choices=["moses"],
        help="restore plain text from the Moses tokens of a system that was trained on text prepared with "
        "--subword moses (default: the hypotheses are plain text)",
    )
    add(
        "--split-compounds",
        action="store_true",
        help="also print BLEU of Moses tokens with hyphens split, which the literature reports for WMT'14",
    )
    add("--target-lang", metavar="LANG", help="target language, needed by --detokenize and --split-compounds")
    parser.path(
        "--documents",
        "print BLEU of sentences (s-BLEU) and of documents joined to a line each (d-BLEU). The file is "
        "plain/test.pieces, which luna-prepare-bitext --documents wrote",
    )
    add_score_arguments(parser)
    return parser


def add_score_arguments(parser: CommandParser) -> None:
    """Add the options ``--test-set`` and ``--samples``, shared by luna-score and luna-evaluate.

    Args:
        parser: parser to add the options to.
    """
    test_set = "refuse a reference that does not belong to this test set (default: %(default)s)"
    parser.add_argument("--test-set", choices=[*TEST_SETS, "none"], default="none", help=test_set)
    samples = "number of translations to print (default: %(default)s)"
    parser.add_argument("--samples", type=Number(int, least=0), default=0, metavar="N", help=samples)


def score(args: argparse.Namespace) -> None:
    """Score an output file of fairseq-generate, print the scores and write the requested files.

    Args:
        args: parsed command-line arguments of luna-score.

    Raises:
        InputError: A file is missing, or does not match the translated text.
        OSError: A file cannot be written.
    """
    if args.target_lang is None and (args.detokenize or args.split_compounds):
        raise InputError("--detokenize and --split-compounds need a language. Give --target-lang.")
    references = list(read_lines(args.reference))
    generated = GenerateOutput(args.generated)
    pieces = read_pieces(args.documents) if args.documents else []
    if pieces and len(generated.best) == len(pieces) < len(references):
        raise InputError(
            f"{args.generated} has a translation of each piece, not of each sentence. Give the file "
            "generate-test-lenpen*.txt that luna-evaluate wrote to its --results."
        )
    hypotheses = generated.hypotheses(references)
    sources = list(read_lines(args.source)) if args.source else None
    if sources is not None and len(sources) != len(references):
        raise InputError(
            f"{args.source} has {len(sources)} lines and {args.reference} has {len(references)}. Give the "
            "source and the reference of the same text."
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
    for result in scores:
        print(f"{result.details}  signature: {result.signature}")
    exact = sum(hypothesis == reference for hypothesis, reference in zip(text.hypotheses, references))
    print(f"identical to the reference: {exact} of {len(references)}")
    _show_samples(text, sources, args.samples)
    if args.output:
        write_text(args.output, "".join(f"{line}\n" for line in text.hypotheses))
    if args.scores:
        write_text(args.scores, json.dumps([asdict(result) for result in scores], indent=1) + "\n")


def _show_samples(text: Translations, sources: Optional[List[str]], number: int) -> None:
    """Print evenly spaced translations with their references and sources.

    Args:
        text: translations and references.
        sources: source lines, or None to print no sources.
        number: number of translations to print.
    """
    number = min(max(number, 0), len(text.hypotheses))
    for index in (step * len(text.hypotheses) // number for step in range(number)):
        print(f"\n[{index + 1}]")
        if sources is not None:
            print(f"  source     {sources[index]}")
        print(f"  hypothesis {text.hypotheses[index]}\n  reference  {text.references[index]}")


main = console_script(PROGRAM, build_parser, score)


if __name__ == "__main__":
    sys.exit(main())
