"""``luna-finetune``: fine-tunes a pretrained masked language model on a task, with every setting of a small
sweep.

DATA is what luna-prepare-task made; the model's size is read from the checkpoint. Each combination
of batch size, learning rate and dropout is a run of fairseq-train in a folder of its own below DIR, which
keeps the epoch that is best on the validation text and ends early when that has not improved for some
epochs. A table shows the runs, then the best of them. Everything else is as in the paper's Table 9; options
after -- go to fairseq-train and override that (as -- --bf16). Started again with the same options, it goes on
where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from luna_fairseq.commands.arguments import CommandParser, Number
from luna_fairseq.commands.logged import fairseq, train_logged
from luna_fairseq.commands.reporting import OWN_FOLDER, USER_DIR, console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT, content_of, digest, sha256, stamps
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import lasting_options, same_run
from luna_fairseq.masked_lm.evaluate_task import evaluate
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask
from luna_fairseq.masked_lm.finetuning.pretrained import Pretrained
from luna_fairseq.masked_lm.finetuning.settings import (
    SEARCH,
    TABLE_9,
    Setting,
    accumulation,
    all_settings,
    number_of_updates,
    settings_of,
    task_options,
)

PROGRAM = "luna-finetune"
BEST = "checkpoint_best.pt"


def build_parser() -> CommandParser:
    """The command's options."""
    usage = "%(prog)s TASK DATA --pretrained CHECKPOINT --out DIR [options] [-- fairseq-train options]"
    parser = CommandParser(PROGRAM, __doc__, usage=usage)
    add = parser.add_argument
    add("task", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.path("data", "folder of the prepared task", "DATA")
    parser.path("--pretrained", "where every run begins", "CHECKPOINT", required=True)
    parser.path("--out", "folder to write to", "DIR", required=True)
    add(
        "--sweep",
        choices=[SEARCH, TABLE_9],
        help="search: what the paper's section 4.3 chooses from, of GLUE batch 16 and 32 by rates 5e-6, 1e-5 "
        "and 2e-5, of RACE and CommonsenseQA rates 1e-5, 2e-5 and 3e-5 by dropout 0, 0.1 and 0.2; table-9: "
        "the settings that its Table 9 prints, one run (default: search, for RACE and CommonsenseQA table-9)",
    )
    parser.count("--batch-sizes", None, "examples per update (default: those of --sweep)", nargs="+")
    rates = "learning rates (default: those of --sweep)"
    add("--lrs", nargs="+", type=Number(float, above=0), metavar="X", help=rates)
    at_a_time = "examples that fit into memory; gradients are accumulated up to the batch size"
    parser.count("--at-a-time", 32, at_a_time)
    parser.count("--epochs", 20, "epochs at most")
    parser.count("--patience", 5, "epochs without improvement after which a run ends")
    head = (
        "classification head: pooling_, mean_ or attention_classification_head reads the last P, any other "
        "name <s> (default: %(default)s)"
    )
    add("--head", default="sentence_classification_head", metavar="NAME", help=head)
    parser.count("--seed", 1, "seed of the runs")
    return parser


class FineTuning:
    """One run of the command, ``extra`` being options for fairseq-train. Raises InputError where the data are
    of another task or vocabulary, or the checkpoint is no masked language model."""

    def __init__(self, args: argparse.Namespace, extra: Sequence[str]) -> None:
        self.args, self.extra = args, list(extra)
        self.task = TASKS[args.task]
        self.data = PreparedTask.load(args.data)
        if self.data.task != args.task:
            raise InputError(f"{args.data} holds {self.data.task}, not {args.task}")
        self.pretrained = Pretrained.load(args.pretrained)
        self.pretrained.check_dictionary(args.data / "input0" / "dict.txt")
        sweep = args.sweep or (TABLE_9 if self.task.is_multiple_choice else SEARCH)
        tried = {"batch_sizes": args.batch_sizes, "learning_rates": args.lrs}
        given: Dict[str, Any] = {name: tuple(values) for name, values in tried.items() if values}
        self.settings = replace(settings_of(self.task, sweep), **given)
        self.runs = all_settings(self.settings)
        for batch_size in self.settings.batch_sizes:
            accumulation(batch_size, args.at_a_time)
        self.task_options = task_options(self.task, args.head)
        self.steps = FinishedSteps(args.out, "finetune.json")

    def run(self) -> None:
        """Do all runs that are not finished yet, print the table and the best run."""
        longest, positions = max(self.data.longest.values()), self.pretrained.positions
        if longest > positions:
            print(f"examples have up to {longest} tokens: they are cut to the model's {positions}")
        results: Dict[str, Dict[str, float]] = {}
        for number, (name, setting) in enumerate(self.runs.items(), 1):
            print(f"== {number} of {len(self.runs)}: {name}", flush=True)
            results[name] = self._run(name, setting)
        width, metrics = max(map(len, results)), self.task.metrics
        print(f"\n{self.task.name} valid".ljust(width + 1), *(f"{name:>16}" for name in metrics))
        for name, scores in results.items():
            print(name.ljust(width), *(f"{scores[metric]:16.2f}" for metric in metrics))
        best = max(results, key=lambda name: results[name][metrics[0]])  # the first of equals
        checkpoint = self.args.out / best / BEST
        print(f"best: {best}, {metrics[0]} {results[best][metrics[0]]:.2f}: {checkpoint}")
        for split in self.data.labelled:
            if split not in ("train", "valid"):
                scores, _, cut = evaluate(self.data, checkpoint, split, self.args.at_a_time)
                print(f"  {split}{cut}:", *(f"{name} {value:.2f}" for name, value in scores.items()))

    def _run(self, name: str, setting: Setting) -> Dict[str, float]:
        """Metrics on the validation text, from this run or an earlier one."""
        folder = self.args.out / name
        options = self._options(folder, setting)
        read = [self.args.pretrained, *sorted(path for path in self.args.data.glob("*/*") if path.is_file())]

        def train() -> Tuple[List[str], Dict[str, float]]:
            self._begin(folder, options)
            train_logged(fairseq("train", options), folder / "train.log", name, shown=["| valid |"])
            facts, _, cut = evaluate(self.data, folder / BEST, "valid", self.args.at_a_time)
            if cut:
                print(f"valid{cut}")
            return [f"{name}/{BEST}"], facts

        return self.steps.do(name, digest(options, stamps(read)), train, says=False)

    def _begin(self, folder: Path, options: List[str]) -> None:
        """Refuse to go on from a checkpoint of other options, data or another pretrained model."""
        what = lasting_options(options[1:])
        what["pretrained model"] = CONTENT + sha256(self.args.pretrained)
        what["training data"] = content_of([self.args.data], ("train", "valid"))
        same_run(folder, "--out", what, (folder / "checkpoint_last.pt").is_file())

    def _options(self, folder: Path, setting: Setting) -> List[str]:
        updates = number_of_updates(self.data.examples["train"], setting.batch_size, self.args.epochs)
        subsets = [split for split in self.data.labelled if split.startswith("valid")]
        return [
            *[str(self.args.data), "--user-dir", USER_DIR],
            *["--save-dir", str(folder), "--finetune-from-model", str(self.args.pretrained)],
            *["--no-epoch-checkpoints", "--patience", str(self.args.patience), "--seed", str(self.args.seed)],
            *["--max-epoch", str(self.args.epochs), "--valid-subset", ",".join(subsets)],
            *[*self.pretrained.options, *self.task_options, *self.settings.options(updates)],
            *["--lr", f"{setting.learning_rate:g}", "--dropout", f"{setting.dropout:g}"],
            *[*accumulation(setting.batch_size, self.args.at_a_time), "--required-batch-size-multiple", "1"],
            # fairseq adds up metrics of one process only, as its own recipes for GLUE do.
            *["--distributed-world-size", "1", "--find-unused-parameters"],
            *["--log-format", "simple", "--log-interval", "100", *self.extra],
        ]


main = console_script(
    PROGRAM,
    build_parser,
    lambda args, extra: FineTuning(args, extra).run(),
    place="out",
    passes_on=(*OWN_FOLDER, "--finetune-from-model"),
    hides_log=True,
)


if __name__ == "__main__":
    sys.exit(main())
