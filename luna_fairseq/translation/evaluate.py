"""Command ``luna-evaluate``: translate a test text of a prepared data folder, and score the translation.

DATA is a folder that luna-prepare-bitext or luna-prepare-wmt14-en-de wrote. The command translates with beam
search, restores plain text and scores it with luna-score. With --tune-lenpen, it first chooses the length
penalty with the best BLEU on the validation text.

DIR then contains hypotheses.LANG, scores.json and the output of fairseq-generate (with --subset test1,
hypotheses-test1.LANG and scores-test1.json). If you start the command again with the same checkpoint, it
skips the steps that are done.

Options after -- go to fairseq-generate. A translation has at most 1.5 tokens per source token plus 20 tokens,
unless --max-len-a, --max-len-b or --min-len is among these options.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser, Number, read_options
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.translation.score import add_score_arguments

PROGRAM = "luna-evaluate"
EXAMPLE = "luna-evaluate data --path checkpoints/averaged.pt --results results --tune-lenpen -- --fp16"
# Options of fairseq-generate that the command sets itself, or with which the scores would not be the model's.
_OWN = (
    *("--path", "--gen-subset", "--results-path", "--source-lang", "-s", "--target-lang", "-t", "--beam"),
    *("--nbest", "--lenpen", "--quiet", "--int8", "--shortlist", "--remove-bpe", "--post-process"),
    # The command restores plain text itself.
    *("--tokenizer", "--bpe"),
    # These translate a part of the text, or begin with the reference.
    *("--num-shards", "--shard-id", "--score-reference", "--prefix-size"),
)
LENGTH_PENALTIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)


@dataclass
class EvaluationOptions:
    """Options of luna-evaluate, which ``--help`` explains.

    If ``subset`` is None, "test" is translated, with a note on further test texts. If ``tune_lenpen`` is
    None, ``lenpen`` is used, and if it is empty, the default values are tried.
    """

    data: Path
    path: Path
    results: Path
    subset: Optional[str] = None
    beam: int = 5
    lenpen: float = 1.0
    tune_lenpen: Optional[Sequence[float]] = None
    max_tokens: int = 4096
    int8: bool = False
    shortlist: Optional[Path] = None
    ema: bool = False
    tokenize: Optional[str] = None
    test_set: str = "none"
    samples: int = 0
    generate: Sequence[str] = ()


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    usage = "%(prog)s DATA --path CHECKPOINT --results DIR [options] [-- fairseq-generate options]"
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE, usage=usage)
    parser.path("data", "folder of the prepared text", "DATA")
    parser.path("--path", "checkpoint to evaluate", "CHECKPOINT", required=True)
    parser.path("--results", "folder to write to", "DIR", required=True)
    subset = "text to translate. The second of several --testpref is test1, the third test2 (default: test)"
    parser.add_argument("--subset", metavar="NAME", help=subset)
    parser.count("--beam", 5, "beam size")
    penalty = parser.add_mutually_exclusive_group()
    fixed = "length penalty (default: %(default)s, as in fairseq)"
    penalty.add_argument("--lenpen", type=Number(float, least=0), default=1.0, metavar="X", help=fixed)
    values = " ".join(map(str, LENGTH_PENALTIES))
    tuned = f"choose the length penalty on the validation text, from these values (default: {values})"
    penalty.add_argument("--tune-lenpen", type=Number(float, least=0), nargs="*", metavar="X", help=tuned)
    parser.count("--max-tokens", 4096, "maximum number of source tokens in a batch")
    int8 = "use 8-bit weights on a CPU, which is faster and hardly changes BLEU"
    parser.add_argument("--int8", action="store_true", help=int8)
    parser.path("--shortlist", "file of luna-make-shortlist, to which target pieces are restricted")
    parser.ema()
    add_score_arguments(parser)
    return parser


def _run(args: argparse.Namespace, extra: List[str]) -> None:
    # Imported here so that --help does not wait for fairseq.
    from luna_fairseq.translation.evaluation import Evaluation

    Evaluation(read_options(EvaluationOptions, args, generate=extra)).run()


main = console_script(PROGRAM, build_parser, _run, path_argument="results", passes_on=_OWN)


if __name__ == "__main__":
    sys.exit(main())
