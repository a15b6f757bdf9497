"""Fine-tune a pretrained model with every setting in a sweep. ``luna-finetune`` runs this code."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from luna_fairseq.commands.logged import fairseq_command, train_logged
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT, checksum_of_data, digest, file_stamps, sha256
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import check_same_run, select_fixed_options
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.evaluation import evaluate
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask
from luna_fairseq.masked_lm.finetuning.pretrained import PretrainedCheckpoint
from luna_fairseq.masked_lm.finetuning.settings import (
    SEARCH,
    TABLE_9,
    Setting,
    accumulation_options,
    choose_settings,
    enumerate_settings,
    number_of_updates,
    task_options,
)

BEST = "checkpoint_best.pt"


class FineTuning:
    """Sweep of training runs that fine-tune one pretrained checkpoint on one task.

    Args:
        args: parsed command-line arguments of ``luna-finetune``.
        extra: options to pass on to fairseq-train.

    Raises:
        InputError: The data was prepared for a different task or vocabulary, or the checkpoint is not a
            masked language model.
    """

    def __init__(self, args: argparse.Namespace, extra: Sequence[str]) -> None:
        self.args, self.extra = args, list(extra)
        self.task = TASKS[args.task]
        self.data = PreparedTask.load(args.data)
        if self.data.task != args.task:
            raise InputError(
                f"expected data of {args.task}, got {self.data.task} in {args.data}. "
                f"Give the data of {args.task}."
            )
        self.pretrained = PretrainedCheckpoint.load(args.pretrained)
        self.pretrained.check_dictionary(args.data / "input0" / "dict.txt")
        sweep = args.sweep or (TABLE_9 if self.task.is_multiple_choice else SEARCH)
        options = {"batch_sizes": args.batch_sizes, "learning_rates": args.lrs}
        overrides: Dict[str, Any] = {name: tuple(values) for name, values in options.items() if values}
        self.settings = replace(choose_settings(self.task, sweep), **overrides)
        self.runs = enumerate_settings(self.settings)
        for batch_size in self.settings.batch_sizes:
            accumulation_options(batch_size, args.at_a_time)
        self.task_options = task_options(self.task, args.head)
        self.steps = FinishedSteps(args.out, "finetune.json")

    def run(self) -> None:
        """Train all unfinished runs, and print the metrics of all runs and the best run.

        If the task has labeled test sets, the best run is evaluated on them.
        """
        longest, positions = max(self.data.longest.values()), self.pretrained.positions
        if longest > positions:
            print(f"examples have up to {longest} tokens, of which the model reads the first {positions}")
        results: Dict[str, Dict[str, float]] = {}
        for number, (name, setting) in enumerate(self.runs.items(), 1):
            print(f"== {number} of {len(self.runs)}: {name}", flush=True)
            results[name] = self._train_and_evaluate(name, setting)
        width, metrics = max(map(len, results)), self.task.metrics
        print(f"\n{self.task.name} valid".ljust(width + 1), *(f"{name:>16}" for name in metrics))
        for name, scores in results.items():
            print(name.ljust(width), *(f"{scores[metric]:16.2f}" for metric in metrics))
        best = max(results, key=lambda name: results[name][metrics[0]])  # the first one in case of a tie
        checkpoint = self.args.out / best / BEST
        print(f"best: {best}, {metrics[0]} {results[best][metrics[0]]:.2f}: {checkpoint}")
        for split in self.data.labelled:
            if split not in ("train", "valid"):
                scores, _, truncation_note = evaluate(self.data, checkpoint, split, self.args.at_a_time)
                print(
                    f"  {split}{truncation_note}:", *(f"{name} {value:.2f}" for name, value in scores.items())
                )

    def _train_and_evaluate(self, name: str, setting: Setting) -> Dict[str, float]:
        """Train one run, and compute its metrics on the validation set.

        Runs already finished by an earlier call are skipped.

        Args:
            name: name of the run and its folder.
            setting: batch size, learning rate and dropout of the run.

        Returns:
            Metrics in percent, keyed by name.
        """
        folder = self.args.out / name
        options = self._train_options(folder, setting)
        files = sorted(path for path in self.args.data.glob("*/*") if path.is_file())

        def train() -> Tuple[List[str], Dict[str, float]]:
            self._check_same_run(folder, options)
            train_logged(fairseq_command("train", options), folder / "train.log", name, shown=["| valid |"])
            metrics, _, truncation_note = evaluate(self.data, folder / BEST, "valid", self.args.at_a_time)
            if truncation_note:
                print(f"valid{truncation_note}")
            return [f"{name}/{BEST}"], metrics

        key = digest(options, file_stamps([self.args.pretrained, *files]))
        return self.steps.do(name, key, train, announce=False)

    def _check_same_run(self, folder: Path, options: List[str]) -> None:
        """Check that the unfinished run in a folder uses the same options, data and pretrained model.

        Args:
            folder: run folder.
            options: options of fairseq-train.

        Raises:
            InputError: The checkpoint in the folder belongs to a different run.
        """
        must_match = select_fixed_options(options[1:])
        must_match["pretrained model"] = CONTENT + sha256(self.args.pretrained)
        must_match["training data"] = checksum_of_data([self.args.data], ("train", "valid"))
        check_same_run(folder, "--out", must_match)

    def _train_options(self, folder: Path, setting: Setting) -> List[str]:
        """Build the fairseq-train command line for one run.

        Args:
            folder: run folder.
            setting: batch size, learning rate and dropout of the run.

        Returns:
            Arguments of fairseq-train.
        """
        updates = number_of_updates(self.data.examples["train"], setting.batch_size, self.args.epochs)
        subsets = [split for split in self.data.labelled if split.startswith("valid")]
        return [
            *[str(self.args.data), "--user-dir", USER_DIR],
            *["--save-dir", str(folder), "--finetune-from-model", str(self.args.pretrained)],
            *["--no-epoch-checkpoints", "--patience", str(self.args.patience), "--seed", str(self.args.seed)],
            *["--max-epoch", str(self.args.epochs), "--valid-subset", ",".join(subsets)],
            *[*self.pretrained.options, *self.task_options, *self.settings.options(updates)],
            *["--lr", f"{setting.learning_rate:g}", "--dropout", f"{setting.dropout:g}"],
            *[
                *accumulation_options(setting.batch_size, self.args.at_a_time),
                "--required-batch-size-multiple",
                "1",
            ],
            # One process, because fairseq does not sum these metrics over processes.
            *["--distributed-world-size", "1", "--find-unused-parameters"],
            *["--log-format", "simple", "--log-interval", "100", *self.extra],
        ]
