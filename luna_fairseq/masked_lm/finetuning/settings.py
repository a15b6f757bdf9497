"""Settings of fine-tuning (Luna, table 9), as options of fairseq-train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from fairseq.criterions.sentence_prediction import SentencePredictionConfig
from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.task import FineTuningTask

BOS, EOS = "0", "2"
LONGEST_CANDIDATE = "128"  # of RACE, whose passages fill the rest of the positions
_ADAM = ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--adam-eps", "1e-6", "--clip-norm", "0.0"]
# fairseq's name of the metric that chooses, and the option that has it computed.
_FAIRSEQ_METRICS = {
    "accuracy": ("accuracy", None),
    "matthews": ("mcc", "report_mcc"),
    "pearson_spearman": ("pearson_and_spearman", "report_pearson_and_spearman"),
}


@dataclass(frozen=True)
class Settings:
    """One column of table 9.

    Attributes:
        batch_sizes, learning_rates: what is tried, every pair of them.
        weight_decay, dropout, attention_dropout, activation_dropout: as their names say.
        schedule: fairseq's name; polynomial_decay falls linearly to zero.
        warmup: updates, or a share of all updates when below 1.
    """

    batch_sizes: Tuple[int, ...]
    learning_rates: Tuple[float, ...]
    weight_decay: float
    dropout: float
    attention_dropout: float
    activation_dropout: float
    schedule: str
    warmup: float

    def options(self, updates: int) -> List[str]:
        """For a run of ``updates`` updates at most."""
        warmup = round(updates * self.warmup) if self.warmup < 1 else min(int(self.warmup), updates - 1)
        words = ["--weight-decay", self.weight_decay, "--dropout", self.dropout]
        words += [
            "--attention-dropout",
            self.attention_dropout,
            "--activation-dropout",
            self.activation_dropout,
        ]
        words += ["--lr-scheduler", self.schedule, "--warmup-updates", warmup]
        if self.schedule == "polynomial_decay":
            words += ["--total-num-update", updates]
        return [*_ADAM, *map(str, words)]


_SWEEP: Dict[str, Any] = {"batch_sizes": (16, 32), "learning_rates": (1e-5, 2e-5, 3e-5)}
_TABLE_9: Dict[str, Any] = {"batch_sizes": (64,), "learning_rates": (1e-5,)}
_GLUE = Settings(**_SWEEP, weight_decay=0.1, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1,
                 schedule="polynomial_decay", warmup=0.06)  # fmt: skip
_SST_2 = Settings(**_SWEEP, weight_decay=0.1, dropout=0.1, attention_dropout=0.1, activation_dropout=0.0,
                  schedule="polynomial_decay", warmup=0.06)  # fmt: skip
_RACE = Settings(**_TABLE_9, weight_decay=0.01, dropout=0.1, attention_dropout=0.1, activation_dropout=0.0,
                 schedule="fixed", warmup=150)  # fmt: skip
_COMMONSENSE_QA = Settings(**_TABLE_9, weight_decay=0.01, dropout=0.2, attention_dropout=0.0,
                           activation_dropout=0.1, schedule="polynomial_decay", warmup=150)  # fmt: skip


def settings_of(task: FineTuningTask) -> Settings:
    """Table 9's for RACE and CommonsenseQA; for GLUE with the small sweep, and SST-2's dropout as the authors
    had it."""
    return {"SST-2": _SST_2, "RACE": _RACE, "CommonsenseQA": _COMMONSENSE_QA}.get(task.name, _GLUE)


def task_options(task: FineTuningTask, head: str) -> List[str]:
    """fairseq's task and criterion for ``task``, with a classification head of the name ``head``.

    Raises:
        InputError: this version of fairseq does not compute the task's metric.
    """
    kind = "sentence_ranking" if task.is_multiple_choice else "sentence_prediction"
    words = ["--task", kind, "--criterion", kind, "--init-token", BOS, "--shorten-method", "truncate"]
    words += ["--ranking-head-name" if task.is_multiple_choice else "--classification-head-name", head]
    words += ["--num-classes", str(max(1, len(task.labels)))]
    if task.name != "CommonsenseQA":
        words += ["--separator-token", EOS]
    if task.name == "RACE":
        words += ["--max-option-length", LONGEST_CANDIDATE]
    if task.is_regression:
        words.append("--regression-target")
    metric, flag = _FAIRSEQ_METRICS[task.metrics[0]]
    if flag is not None:
        if not hasattr(SentencePredictionConfig(), flag):
            raise InputError(
                f"{task.name} needs a newer fairseq, which computes its metric: fairseq-fixed 0.12.3"
            )
        words.append(f"--{flag.replace('_', '-')}")
    return [*words, "--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric"]


def number_of_updates(examples: int, batch_size: int, epochs: int) -> int:
    """Updates in ``epochs`` epochs; the last batch of an epoch may be smaller."""
    return epochs * math.ceil(examples / batch_size)


def accumulation(batch_size: int, at_a_time: int) -> List[str]:
    """Options for batches of ``batch_size`` that are computed ``at_a_time`` examples at a time.

    Raises:
        InputError: the one is no multiple of the other.
    """
    at_a_time = min(at_a_time, batch_size)
    if batch_size % at_a_time:
        raise InputError(
            f"--at-a-time {at_a_time} does not divide the batch size {batch_size}: choose another"
        )
    return ["--batch-size", str(at_a_time), "--update-freq", str(batch_size // at_a_time)]


def setting_name(batch_size: int, learning_rate: float) -> str:
    """Of a run's folder."""
    return f"batch{batch_size}-lr{learning_rate:g}"


def all_settings(batch_sizes: Sequence[int], learning_rates: Sequence[float]) -> List[Tuple[int, float]]:
    """Every batch size with every learning rate."""
    return [(batch_size, rate) for batch_size in batch_sizes for rate in learning_rates]
