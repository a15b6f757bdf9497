"""``luna-score``: BLEU and chrF of what fairseq-generate printed.

Puts the hypotheses in the order of the sentences, checks that none is missing, and compares them, as plain text, with
the plain reference: ``fairseq-generate`` itself scores pieces against pieces. FILE is its output (or the
generate-*.txt of --results-path), made with --remove-bpe sentencepiece, so that hypotheses are words.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, TextIO

from sacrebleu.metrics import BLEU, CHRF

from luna_fairseq.data.bitext import read_lines
from luna_fairseq.data.finished_steps import replacing
from luna_fairseq.errors import InputError

PROGRAM = "luna-score"
SENTENCEPIECE_SPACE = "\u2581"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Console entry point.

    Args:
        argv: command-line arguments, those of the process by default.

    Returns:
        Exit status: 0, or 1 after one line on stderr.
    """
    args = build_parser().parse_args(argv)
    try:
        references = list(read_lines(args.reference))
        hypotheses = read_hypotheses(args.generated, len(references))
        sources = _read_sources(args.source, args.reference, len(references))
        report(hypotheses, references, args.tokenize)
        show_samples(hypotheses, references, sources, args.samples)
        if args.output:
            with replacing(args.output) as temporary:
                temporary.write_bytes("".join(f"{line}\n" for line in hypotheses).encode("utf-8"))
    except InputError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{PROGRAM}: error: cannot write {args.output}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("generated", type=Path, metavar="FILE", help="output of fairseq-generate")
    parser.add_argument("--reference", required=True, type=Path, metavar="FILE", help="plain reference text")
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="plain source text, to show beside the samples"
    )
    parser.add_argument(
        "--samples", type=int, default=0, metavar="N", help="translations to show (default: 0)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the hypotheses to this file, one a line"
    )
    parser.add_argument(
        "--tokenize",
        choices=sorted(BLEU.TOKENIZERS),
        default=BLEU.TOKENIZER_DEFAULT,
        help="sacreBLEU's tokenizer (default: %(default)s)",
    )
    return parser


def read_hypotheses(path: Path, number: int) -> List[str]:
    """The best hypothesis of every sentence, in the order of sentence ids.

    ``D-`` lines (detokenised) are taken where there are any, else ``H-`` lines.

    Args:
        path: output of fairseq-generate.
        number: how many sentences there are to be: their ids are 0 to number - 1.

    Raises:
        InputError: the file cannot be read, holds no or too few hypotheses, those of other sentences, or pieces of
            words.
    """
    _check_complete_last_line(path)
    found: Dict[str, Dict[int, str]] = {"H": {}, "D": {}}
    sentences = set()
    for line in read_lines(path):
        kind, dash, rest = line.partition("-")
        if not dash or kind not in ("S", "H", "D"):
            continue
        identifier, _, text = rest.partition("\t")
        if not identifier.isdigit():
            continue
        if kind == "S":
            if int(identifier) in sentences:
                raise InputError(
                    f"{path} has sentence {identifier} twice: it holds the output of several runs"
                )
            sentences.add(int(identifier))
        else:
            # With --nbest several follow one another, the best first.
            found[kind].setdefault(int(identifier), text.partition("\t")[2])
    return _in_order(found["D"] or found["H"], number, path)


def _check_complete_last_line(path: Path) -> None:
    try:
        with path.open("rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if content and not content.endswith(b"\n"):
        raise InputError(f"{path} breaks off in its last line: run fairseq-generate again")


def _in_order(hypotheses: Dict[int, str], number: int, path: Path) -> List[str]:
    if not hypotheses:
        raise InputError(
            f"{path} has no H- or D- lines: give the output of fairseq-generate, run without --quiet"
        )
    beyond = max(hypotheses)
    if beyond >= number:
        raise InputError(
            f"{path} has a sentence {beyond}, but the reference has {number} lines: is it another text's?"
        )
    missing = [identifier for identifier in range(number) if identifier not in hypotheses]
    if missing:
        raise InputError(
            f"{path} lacks {len(missing)} of {number} sentences, the first being {missing[0]}: either fairseq-generate "
            "broke off, or it left out the last batch, as it does without --required-batch-size-multiple 1"
        )
    lines = [hypotheses[identifier] for identifier in range(number)]
    if any(SENTENCEPIECE_SPACE in line or "@@ " in line for line in lines):
        raise InputError(
            f"{path} holds pieces of words: run fairseq-generate with --remove-bpe sentencepiece (or subword-nmt)"
        )
    return lines


def _read_sources(path: Optional[Path], reference: Path, number: int) -> Optional[List[str]]:
    if path is None:
        return None
    lines = list(read_lines(path))
    if len(lines) != number:
        raise InputError(
            f"{path} has {len(lines)} lines and {reference} has {number}: they must be of one text"
        )
    return lines


def report(
    hypotheses: List[str], references: List[str], tokenize: str, file: Optional[TextIO] = None
) -> None:
    """Print BLEU and chrF with sacreBLEU's signatures.

    Args:
        hypotheses: one translation a sentence, as plain text.
        references: the references, in the same order.
        tokenize: name of sacreBLEU's tokenizer.
        file: where to print (default: stdout).
    """
    for metric in (BLEU(tokenize=tokenize), CHRF()):
        score = metric.corpus_score(hypotheses, [references])
        print(f"{score}  signature: {metric.get_signature()}", file=file)
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references))
    print(f"identical to the reference: {exact} of {len(references)}", file=file)


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


if __name__ == "__main__":
    sys.exit(main())
