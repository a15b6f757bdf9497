"""Command ``luna-score``: compute BLEU and chrF of the translations that fairseq-generate printed.

The command sorts the hypotheses by sentence and checks that none is missing. It compares the reference and
the source with the T- and S- lines of FILE. It then scores plain text against the plain reference, whereas
fairseq-generate itself scores subword pieces.

FILE is the output of fairseq-generate (or generate-*.txt of --results-path). Run fairseq-generate with
--remove-bpe sentencepiece (or subword_nmt), so that hypotheses are words.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from sacrebleu.metrics import BLEU

from luna_fairseq.commands.arguments import CommandParser, Number, read_options
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.scores import write_scores
from luna_fairseq.files.writing import check_separate, write_text
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.documents import read_pieces
from luna_fairseq.translation.generated import GenerateOutput
from luna_fairseq.translation.scores import (
    TEST_SETS,
    Translations,
    choose_tokenizer,
    describe_split_hyphens,
    describe_tokenizer,
    document_scores,
    make_bleu,
    plain_scores,
    split_score,
    unigram_score,
)

PROGRAM = "luna-score"
EXAMPLE = f"{PROGRAM} generate-test.txt --reference data/plain/test.de --samples 5 --scores scores.json"


@dataclass
class ScoreOptions:
    """Options of luna-score, which ``--help`` explains."""

    generated: Path
    reference: Path
    source: Optional[Path] = None
    output: Optional[Path] = None
    scores: Optional[Path] = None
    tokenize: Optional[str] = None
    bleu_1: bool = False
    detokenize: Optional[str] = None
    split_compounds: bool = False
    target_lang: Optional[str] = None
    documents: Optional[Path] = None
    test_set: str = "none"
    samples: int = 0


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    add = parser.add_argument
    parser.path("generated", "output of fairseq-generate")
    parser.path("--reference", "plain reference text", required=True)
    parser.path("--source", "plain source text, shown beside the samples (default: not shown)")
    parser.path("--output", "file to write the plain hypotheses to, one a line (default: none)")
    parser.path("--scores", "JSON file to write the scores to (default: none)")
    bleu_1 = "also print BLEU of single words (for tokenised text, add --tokenize none)"
    add("--bleu-1", action="store_true", help=bleu_1)
    add(
        "--detokenize",
        choices=["moses"],
        help="restore plain text from the Moses tokens in the H- lines of a system that was trained on text "
        "prepared with --subword moses (default: the hypotheses are plain text)",
    )
    add(
        "--split-compounds",
        action="store_true",
        help="also print BLEU of Moses tokens with hyphens split, which the literature reports for WMT'14",
    )
    language = (
        "target language, needed by --detokenize and --split-compounds. It also chooses the tokenizer "
        "(default: the suffix of the reference, for the tokenizer only)"
    )
    add("--target-lang", metavar="LANG", help=language)
    parser.path(
        "--documents",
        "print BLEU of sentences (s-BLEU) and of documents joined to a line each (d-BLEU). The file is "
        "plain/test.pieces, which luna-prepare-bitext --documents wrote",
    )
    add_score_arguments(parser)
    return parser


def add_score_arguments(parser: CommandParser) -> None:
    """Add the scoring options shared by luna-score and luna-evaluate."""
    add_tokenize(parser)
    test_set = "refuse a reference that does not belong to this test set (default: %(default)s)"
    parser.add_argument("--test-set", choices=[*TEST_SETS, "none"], default="none", help=test_set)
    samples = "number of translations to print (default: %(default)s)"
    parser.add_argument("--samples", type=Number(int, least=0), default=0, metavar="N", help=samples)


def add_tokenize(parser: CommandParser) -> None:
    """Add the option ``--tokenize``, which selects sacreBLEU's tokenizer."""
    parser.add_argument(
        "--tokenize",
        choices=sorted(BLEU.TOKENIZERS),
        help="sacreBLEU's tokenizer (default: as in sacreBLEU, zh for Chinese, ja-mecab for Japanese, "
        "ko-mecab for Korean and 13a for all other target languages)",
    )


def score(options: ScoreOptions, origin: Optional[Dict[str, Any]] = None) -> None:
    """Score an output file of fairseq-generate, write the requested files, and print the scores.

    Args:
        options: input and output files, and the scores to compute.
        origin: description of the checkpoint and settings that produced the output, from
            :func:`luna_fairseq.files.scores.describe_checkpoint`. None if unknown.

    Raises:
        InputError: A file is missing, does not match the translated text, or is named for two purposes.
        OSError: A file cannot be written.
    """
    if options.target_lang is None and (options.detokenize or options.split_compounds):
        raise InputError("--detokenize and --split-compounds need a language. Give --target-lang.")
    others = [options.generated, options.reference, options.source, options.documents]
    for name, path in (("--output", options.output), ("--scores", options.scores)):
        if path is not None:
            check_separate(path, name, filter(None, others))
            others.append(path)
    language = options.target_lang or options.reference.suffix[1:]
    tokenizer = choose_tokenizer(options.tokenize, language)
    make_bleu(tokenizer)  # raises if the tokenizer is not installed
    references = list(read_lines(options.reference))
    generated = GenerateOutput(options.generated, moses_tokens=options.detokenize == "moses")
    pieces = read_pieces(options.documents) if options.documents else []
    if pieces and len(generated.best) == len(pieces) < len(references):
        raise InputError(
            f"{options.generated} has a translation of each piece, not of each sentence. Give the file "
            "generate-test-lenpen*.txt that luna-evaluate wrote to its --results."
        )
    sources = list(read_lines(options.source)) if options.source else None
    if sources is not None and len(sources) != len(references):
        raise InputError(
            f"{options.source} has {len(sources)} lines and {options.reference} has {len(references)}. "
            "Give the source and the reference of the same text."
        )
    # First, because the reference of another text may also have another number of lines.
    notes = generated.compare(options.reference, references, options.source, sources or [])
    hypotheses = generated.hypotheses(references)
    split = "" if options.detokenize else describe_split_hyphens(hypotheses)
    if split:
        notes.append(
            f"the hypotheses are Moses tokens ({split}), but are scored as plain text. "
            "Give luna-score --detokenize moses to restore plain text"
        )
    text = Translations.read(hypotheses, references, options.detokenize, options.target_lang)
    test_set = TEST_SETS.get(options.test_set)
    scores = plain_scores(text, tokenizer, test_set)
    if options.documents:
        scores[:1] = document_scores(text, pieces, scores[0], tokenizer)
    if options.bleu_1:
        scores.append(unigram_score(text, tokenizer))
    if options.split_compounds:
        scores.append(split_score(text, str(options.target_lang), test_set))
    # Written before anything is printed, because a closed terminal ends the command.
    if options.output:
        write_text(options.output, "".join(f"{line}\n" for line in text.hypotheses))
    if options.scores:
        settings = {**(origin or {}).get("settings", {}), "tokenize": tokenizer}
        origin = {**(origin or {}), "settings": settings}
        write_scores(options.scores, [asdict(result) for result in scores], options.generated, origin)
    print(*(f"note: {note}\n" for note in [*generated.notes, *notes]), sep="", end="")
    print(describe_tokenizer(tokenizer, language), end="")
    for result in scores:
        print(f"{result.details}  signature: {result.signature}")
    exact = sum(hypothesis == reference for hypothesis, reference in zip(text.hypotheses, references))
    print(f"identical to the reference: {exact} of {len(references)}")
    _show_samples(text, sources, options.samples)


def _show_samples(text: Translations, sources: Optional[List[str]], number: int) -> None:
    """Print ``number`` evenly spaced translations with their references and, if given, their sources."""
    number = min(max(number, 0), len(text.hypotheses))
    for index in (step * len(text.hypotheses) // number for step in range(number)):
        print(f"\n[{index + 1}]")
        if sources is not None:
            print(f"  source     {sources[index]}")
        print(f"  hypothesis {text.hypotheses[index]}\n  reference  {text.references[index]}")


def _run(args: argparse.Namespace) -> None:
    score(read_options(ScoreOptions, args))


main = console_script(PROGRAM, build_parser, _run)


if __name__ == "__main__":
    sys.exit(main())
