"""Command ``luna-evaluate``: translate the test text of a prepared data folder, and score the translation.

DATA is a folder that luna-prepare-bitext or luna-prepare-wmt14-en-de wrote. The command translates with beam
search, restores plain text and scores it with luna-score. With --tune-lenpen, it first chooses the length
penalty with the best BLEU on the validation text.

DIR then contains hypotheses.LANG, scores.json and the output of fairseq-generate. If you start the command
again with the same checkpoint, it skips the steps that are done.

Options after -- go to fairseq-generate. A translation has at most 1.5 tokens per source token plus 20 tokens,
unless --max-len-a, --max-len-b or --min-len is among these options.
"""

from __future__ import annotations

import argparse
import sys
from typing import List

from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.translation.score import add_score_arguments

PROGRAM = "luna-evaluate"
EXAMPLE = "luna-evaluate data --path checkpoints/averaged.pt --results results --tune-lenpen -- --fp16"
# Options of fairseq-generate that the command gives itself.
_OWN = (
    *("--path", "--gen-subset", "--results-path", "--source-lang", "-s", "--target-lang", "-t", "--beam"),
    *("--nbest", "--lenpen", "--quiet"),
)
LENGTH_PENALTIES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    usage = "%(prog)s DATA --path CHECKPOINT --results DIR [options] [-- fairseq-generate options]"
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE, usage=usage)
    parser.path("data", "folder of the prepared text", "DATA")
    parser.path("--path", "checkpoint to evaluate", "CHECKPOINT", required=True)
    parser.path("--results", "folder to write to", "DIR", required=True)
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

    Evaluation(args, extra).run()


main = console_script(PROGRAM, build_parser, _run, path_argument="results", passes_on=_OWN)


if __name__ == "__main__":
    sys.exit(main())
