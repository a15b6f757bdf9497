"""Command ``luna-evaluate-task``: compute the metrics of a fine-tuned checkpoint on a split of a task.

DATA is a folder that luna-prepare-task wrote. The metrics of the task are printed in percent. With
--predictions, the command also writes the predicted labels to a file, one label per line, in the order of the
task's file. For a split without answers, the command only predicts labels.
"""

from __future__ import annotations

import argparse
import sys

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.files.writing import check_separate, write_text

PROGRAM = "luna-evaluate-task"
EXAMPLE = f"{PROGRAM} rte-data --path rte-runs/batch32-lr1e-05/checkpoint_best.pt --predictions rte.txt"


def _evaluate(args: argparse.Namespace) -> None:
    # Imported here so that --help does not have to import fairseq.
    from luna_fairseq.masked_lm.finetuning.evaluation import evaluate
    from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask

    if args.predictions is not None:
        check_separate(args.predictions, "--predictions", [args.path])
    data = PreparedTask.load(args.data)
    results, predicted, truncation_note = evaluate(data, args.path, args.split, args.batch_size)
    if args.predictions is not None:
        write_text(args.predictions, "".join(f"{value}\n" for value in predicted))
    metrics = "".join(f"  {name} {value:.2f}" for name, value in results.items())
    metrics = metrics or "  no answers to compare with"
    print(f"{data.task} {args.split}, {len(predicted):,} examples{truncation_note}:{metrics}")


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-evaluate-task."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    parser.path("data", "folder of the prepared task", "DATA")
    parser.path("--path", "fine-tuned checkpoint", "CHECKPOINT", required=True)
    splits = "split to evaluate: valid, valid1, test or test1 (default: valid)"
    parser.add_argument("--split", default="valid", metavar="NAME", help=splits)
    parser.count("--batch-size", 32, "number of examples in a batch")
    parser.path("--predictions", "file to write the predictions to (default: none)")
    return parser


main = console_script(PROGRAM, build_parser, _evaluate, path_argument="data", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
