"""Hyperparameter sweep for fine-tuning a pretrained model (``luna-finetune``)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

from luna_fairseq.commands.logged import DivergedError, fairseq_command, train_logged
from luna_fairseq.commands.reporting import USER_DIR
from luna_fairseq.commands.run_length import check_not_longer
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CONTENT, checksum_of_data, digest, file_stamps, sha256
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import check_same_run, select_fixed_options
from luna_fairseq.masked_lm.finetune import FineTuningOptions
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.evaluation import evaluate
from luna_fairseq.masked_lm.finetuning.prepared import PreparedTask, find_input_folders
from luna_fairseq.masked_lm.finetuning.pretrained import PretrainedCheckpoint
from luna_fairseq.masked_lm.finetuning.settings import (
    SEARCH,
    TABLE_9,
    Setting,
    accumulation_options,
    choose_settings,
    enumerate_settings,
    leave_out_replaced,
    number_of_updates,
    task_options,
)

BEST = "checkpoint_best.pt"


def find_best(values: Dict[str, float]) -> str:
    """Return the name of the highest value, the first one in case of a tie. NaN is lower than any number.

    A correlation is NaN if the model predicts the same number for all examples.
    """
    return max(values, key=lambda name: -math.inf if math.isnan(values[name]) else values[name])


class FineTuning:
    """Hyperparameter sweep that fine-tunes a pretrained checkpoint on a task.

    The output folder contains one folder per run, and ``finetune.json``, the record of finished runs.
    """

    def __init__(self, options: FineTuningOptions) -> None:
        self.options = options
        self.task = TASKS[options.task]
        self.data = PreparedTask.load(options.data)
        if self.data.task != options.task:
            raise InputError(
                f"expected data of {options.task}, got {self.data.task} in {options.data}. "
                f"Give the data of {options.task}."
            )
        self.pretrained = PretrainedCheckpoint.load(options.pretrained)
        self.pretrained.check_options(options.train)
        self.pretrained.check_head(options.head)
        self.pretrained.check_dictionary(options.data / "input0" / "dict.txt")
        sweep = options.sweep or (TABLE_9 if self.task.is_multiple_choice else SEARCH)
        given = {"batch_sizes": options.batch_sizes, "learning_rates": options.lrs}
        overrides: Dict[str, Any] = {name: tuple(values) for name, values in given.items() if values}
        self.settings = replace(choose_settings(self.task, sweep), **overrides)
        self.runs = enumerate_settings(self.settings)
        # Called only for its check, which raises InputError before the first run is trained.
        for batch_size in self.settings.batch_sizes:
            accumulation_options(batch_size, options.at_a_time)
        self.task_options = task_options(self.task, options.head)
        self.steps = FinishedSteps(options.out, "finetune.json")

    def run(self) -> None:
        """Train all unfinished runs of the sweep, and print their validation metrics and the best run.

        The best run has the highest value of the task's first metric. It is also evaluated on all other
        labeled splits, such as a second validation set. Raises InputError if all runs diverged.
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
            cells = [f"{scores[metric]:.2f}" for metric in metrics] if scores else ["diverged"]
            print(name.ljust(width), *(f"{cell:>16}" for cell in cells))
        finished = [name for name, scores in results.items() if scores]
        if not finished:
            raise InputError(f"all {len(results)} runs diverged. Give smaller learning rates with --lrs.")
        best = find_best({name: results[name][metrics[0]] for name in finished})
        checkpoint = self.options.out / best / BEST
        print(f"best: {best}, {metrics[0]} {results[best][metrics[0]]:.2f}: {checkpoint}")
        for split in self.data.labelled:
            if split not in ("train", "valid"):
                scores, _, truncation_note = evaluate(self.data, checkpoint, split, self.options.at_a_time)
                print(
                    f"  {split}{truncation_note}:", *(f"{name} {value:.2f}" for name, value in scores.items())
                )

    def _train_and_evaluate(self, name: str, setting: Setting) -> Dict[str, float]:
        """Train a run unless it is finished. Return its validation metrics, or {} if training diverged."""
        folder = self.options.out / name
        options = self._train_options(folder, setting)
        folders = [*find_input_folders(self.options.data), self.options.data / "label"]
        files = sorted(path for each in folders for path in each.glob("*") if path.is_file())

        def train() -> Tuple[List[str], Dict[str, float]]:
            log = folder / "train.log"
            try:
                train_logged(fairseq_command("train", options), log, name, shown=["| valid |"])
            except DivergedError as error:
                print(error)
                return [], {}
            metrics, _, truncation_note = evaluate(self.data, folder / BEST, "valid", self.options.at_a_time)
            if truncation_note:
                print(f"valid{truncation_note}")
            return [f"{name}/{BEST}"], metrics

        key = digest(options, file_stamps([self.options.pretrained, *files]))
        if self.steps.find(name, key) is None:  # checked before `do` forgets an earlier result
            self._check_same_run(folder, options)
        return self.steps.do(name, key, train, announce=False)

    def _check_same_run(self, folder: Path, options: List[str]) -> None:
        """Lock a run's folder. Raise InputError if it has a longer run, or one with other options or data."""
        must_match = select_fixed_options(options[1:], compares_results=True)
        # The checkpoint is compared by its content, which may be in another place.
        must_match.pop("--finetune-from-model", None)
        must_match["pretrained model"] = CONTENT + sha256(self.options.pretrained)
        must_match["training data"] = checksum_of_data([self.options.data], ("train", "valid"))
        check_same_run(folder, "--out", must_match)
        check_not_longer(folder, "--out", options[1:])

    def _train_options(self, folder: Path, setting: Setting) -> List[str]:
        """Return the fairseq-train arguments for one run with the hyperparameters ``setting``."""
        updates = number_of_updates(self.data.examples["train"], setting.batch_size, self.options.epochs)
        settings = leave_out_replaced(self.settings.options(updates), self.options.train)
        subsets = [split for split in self.data.labelled if split.startswith("valid")]
        return [
            *[str(self.options.data), "--user-dir", USER_DIR],
            *["--save-dir", str(folder), "--finetune-from-model", str(self.options.pretrained)],
            *[
                "--no-epoch-checkpoints",
                "--patience",
                str(self.options.patience),
                "--seed",
                str(self.options.seed),
            ],
            *["--max-epoch", str(self.options.epochs), "--valid-subset", ",".join(subsets)],
            *[*self.pretrained.options, *self.task_options, *settings],
            *["--lr", f"{setting.learning_rate}", "--dropout", f"{setting.dropout:g}"],
            *[
                *accumulation_options(setting.batch_size, self.options.at_a_time),
                "--required-batch-size-multiple",
                "1",
            ],
            # One process, because fairseq adds up only numbers over processes, and F1 or a correlation needs
            # all predictions.
            *["--distributed-world-size", "1", "--find-unused-parameters"],
            *["--log-format", "simple", "--log-interval", "100", *self.options.train],
        ]
