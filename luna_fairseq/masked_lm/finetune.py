"""Command ``luna-finetune``: fine-tune a pretrained masked language model on a task and choose the best run.

DATA is a folder that luna-prepare-task wrote. The size of the model is read from the checkpoint. For each
combination of batch size, learning rate and dropout, fairseq-train runs in a separate folder inside DIR. A
run saves the epoch that is best on the validation text, and ends early if the metric has not improved for a
few epochs. At the end, a table shows all runs and the best run. A run that diverges has no result there.

All other settings are those of the paper's Table 9, except that SST-2 has no activation dropout, as in the
authors' command. Options of fairseq-train after -- override these settings. If you repeat the command with
the same options, it resumes the runs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

from luna_fairseq.commands.arguments import CommandParser, Number, read_options
from luna_fairseq.commands.reporting import OWN_FOLDER, console_script
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.settings import SEARCH, TABLE_9

PROGRAM = "luna-finetune"
EXAMPLE = f"{PROGRAM} RTE rte-data --pretrained checkpoint_best.pt --out rte-runs --sweep table-9 -- --bf16"
# Options of fairseq-train that the command's own options, the task and the checkpoint determine. The names of
# the runs and the table of their results would be wrong with other values.
_OWN = (
    *(*OWN_FOLDER, "--finetune-from-model", "--restore-file", "--task", "--criterion", "--arch", "-a"),
    *("--lr", "--dropout", "--batch-size", "--max-sentences", "--max-tokens", "--update-freq", "--max-epoch"),
    *("--patience", "--seed", "--num-classes", "--classification-head-name", "--ranking-head-name"),
    *(
        "--init-token",
        "--separator-token",
        "--regression-target",
        "--valid-subset",
        "--best-checkpoint-metric",
    ),
    *("--maximize-best-checkpoint-metric", "--required-batch-size-multiple", "--distributed-world-size"),
    "--user-dir",
)


@dataclass
class FineTuningOptions:
    """Options of luna-finetune, which ``--help`` explains."""

    task: str
    data: Path
    pretrained: Path
    out: Path
    sweep: Optional[str] = None
    batch_sizes: Optional[Sequence[int]] = None
    lrs: Optional[Sequence[float]] = None
    at_a_time: int = 32
    epochs: int = 20
    patience: int = 5
    head: str = "sentence_classification_head"
    seed: int = 1
    train: Sequence[str] = ()


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-finetune."""
    usage = "%(prog)s TASK DATA --pretrained CHECKPOINT --out DIR [options] [-- fairseq-train options]"
    parser = CommandParser(PROGRAM, __doc__, EXAMPLE, usage=usage)
    add = parser.add_argument
    add("task", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.path("data", "folder of the prepared task", "DATA")
    parser.path("--pretrained", "checkpoint from which every run starts", "CHECKPOINT", required=True)
    parser.path("--out", "folder to write to", "DIR", required=True)
    add(
        "--sweep",
        choices=[SEARCH, TABLE_9],
        help="search: a run for each setting that section 4.3 of the paper compares (GLUE: batch sizes 16 "
        "and 32 with learning rates 5e-6, 1e-5 and 2e-5; RACE and CommonsenseQA: learning rates 1e-5, 2e-5 "
        "and 3e-5 with dropout 0, 0.1 and 0.2). table-9: a single run with the settings of the paper's "
        "Table 9, for SST-2 without activation dropout (default: search for GLUE, table-9 for RACE and "
        "CommonsenseQA)",
    )
    parser.count(
        "--batch-sizes",
        None,
        "numbers of examples per update (default: the batch sizes of --sweep)",
        nargs="+",
    )
    rates = "learning rates (default: the learning rates of --sweep)"
    add("--lrs", nargs="+", type=Number(float, above=0), metavar="X", help=rates)
    at_a_time = "number of examples that fit into memory; gradients are accumulated to reach the batch size"
    parser.count("--at-a-time", 32, at_a_time)
    parser.count("--epochs", 20, "maximum number of epochs")
    parser.count("--patience", 5, "end a run after this number of epochs without improvement")
    head = (
        "name of the classification head. pooling_classification_head, mean_classification_head and "
        "attention_classification_head read the packed sequence P of the last layer. A head of any other "
        "name reads <s> (default: %(default)s). Only Luna models have P"
    )
    add("--head", default="sentence_classification_head", metavar="NAME", help=head)
    parser.count("--seed", 1, "seed of the runs")
    return parser


def _run(args: argparse.Namespace, extra: List[str]) -> None:
    # Imported here so that --help does not have to import fairseq.
    from luna_fairseq.masked_lm.finetuning.runs import FineTuning

    FineTuning(read_options(FineTuningOptions, args, train=extra)).run()


main = console_script(
    PROGRAM,
    build_parser,
    _run,
    path_argument="out",
    passes_on=_OWN,
    hides_log=True,
)


if __name__ == "__main__":
    sys.exit(main())
