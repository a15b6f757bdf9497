"""Command ``luna-prepare-task``: convert the published files of a fine-tuning task for fairseq.

FOLDER has the published files: the tab-separated files of a GLUE task (train.tsv, dev.tsv and so on), the
folders train, dev and test of RACE, or the .jsonl files of CommonsenseQA. The text is encoded with the
tokenizer and the dictionary of the pretrained model.

The command writes to DIR the folders input0, input1 and so on, the folder label, and the files of the
tokenizer. fairseq's tasks sentence_prediction and sentence_ranking (for multiple choice) read these folders.
If you repeat the command, it does nothing unless its input has changed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from luna_fairseq.commands.arguments import CommandParser, read_options
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.masked_lm.finetuning import TASKS

PROGRAM = "luna-prepare-task"
EXAMPLE = f"{PROGRAM} RTE glue/RTE --vocabulary data --destdir rte-data"


@dataclass
class TaskOptions:
    """Options of luna-prepare-task, which ``--help`` explains."""

    task: str
    folder: Path
    vocabulary: Path
    destdir: Path
    max_unknown: float = 2.0
    workers: int = 1


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-prepare-task."""
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE)
    parser.add_argument("task", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.path("folder", "folder of the task's published files", "FOLDER")
    vocabulary = "folder with dict.txt and the tokenizer of the pretrained model, from luna-prepare-text"
    parser.path("--vocabulary", vocabulary, "DIR", required=True)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.max_unknown()
    parser.workers()
    return parser


def _run(args: argparse.Namespace) -> None:
    # Imported here so that --help does not have to import fairseq.
    from luna_fairseq.masked_lm.finetuning.preparation import TaskPreparation

    TaskPreparation(read_options(TaskOptions, args)).run()


main = console_script(PROGRAM, build_parser, _run, path_argument="destdir")


if __name__ == "__main__":
    sys.exit(main())
