"""Settings of fine-tuning (Luna, section 4.3 and Table 9), as options of fairseq-train."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Dict, List, NamedTuple, Tuple

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
    """What is tried of a task, and what is the same in every run.

    Attributes:
        batch_sizes, learning_rates, dropouts: what is tried, every combination.
        weight_decay, attention_dropout, activation_dropout: as their names say.
        schedule: fairseq's name; polynomial_decay falls linearly to zero.
        warmup: updates, or a share of all updates when below 1.
    """

    batch_sizes: Tuple[int, ...]
    learning_rates: Tuple[float, ...]
    dropouts: Tuple[float, ...]
    weight_decay: float
    attention_dropout: float
    activation_dropout: float
    schedule: str
    warmup: float

    def options(self, updates: int) -> List[str]:
        """For a run of ``updates`` updates at most."""
        warmup = round(updates * self.warmup) if self.warmup < 1 else min(int(self.warmup), updates - 1)
        words = ["--weight-decay", self.weight_decay, "--attention-dropout", self.attention_dropout]
        words += ["--activation-dropout", self.activation_dropout, "--lr-scheduler", self.schedule]
        words += ["--warmup-updates", warmup]
        if self.schedule == "polynomial_decay":
            words += ["--total-num-update", updates]
        return [*_ADAM, *map(str, words)]


# Table 9, a column each.
TABLE_9, SEARCH = "table-9", "search"
_GLUE = Settings((32,), (1e-5,), (0.1,), weight_decay=0.1, attention_dropout=0.1, activation_dropout=0.1,
                 schedule="polynomial_decay", warmup=0.06)  # fmt: skip
_RACE = Settings((64,), (1e-5,), (0.1,), weight_decay=0.01, attention_dropout=0.1, activation_dropout=0.0,
                 schedule="fixed", warmup=150)  # fmt: skip
_COMMONSENSE_QA = Settings((64,), (1e-5,), (0.2,), weight_decay=0.01, attention_dropout=0.0,
                           activation_dropout=0.1, schedule="polynomial_decay", warmup=150)  # fmt: skip
# What section 4.3 chooses from, of GLUE and of question answering.
_SEARCH_GLUE: Dict[str, Any] = {"batch_sizes": (16, 32), "learning_rates": (5e-6, 1e-5, 2e-5)}
_SEARCH_ANSWERS: Dict[str, Any] = {"learning_rates": (1e-5, 2e-5, 3e-5), "dropouts": (0.0, 0.1, 0.2)}


def settings_of(task: FineTuningTask, sweep: str) -> Settings:
    """``table-9``: the paper's settings; ``search``: those that its section 4.3 chooses them from. SST-2's
    activation dropout is that of the authors' command."""
    settings = {"RACE": _RACE, "CommonsenseQA": _COMMONSENSE_QA}.get(task.name, _GLUE)
    if task.name == "SST-2":
        settings = replace(settings, activation_dropout=0.0)
    if sweep == TABLE_9:
        return settings
    return replace(settings, **(_SEARCH_ANSWERS if task.is_multiple_choice else _SEARCH_GLUE))


def task_options(task: FineTuningTask, head: str) -> List[str]:
    """fairseq's task and criterion for ``task``, with a classification head of the name ``head``. Raises
    InputError where this version of fairseq does not compute the task's metric."""
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
    """Options for batches of ``batch_size`` that are computed ``at_a_time`` examples at a time. Raises
    InputError where the one is no multiple of the other."""
    at_a_time = min(at_a_time, batch_size)
    if batch_size % at_a_time:
        raise InputError(
            f"--at-a-time {at_a_time} does not divide the batch size {batch_size}: choose another"
        )
    return ["--batch-size", str(at_a_time), "--update-freq", str(batch_size // at_a_time)]


class Setting(NamedTuple):
    """One combination of what is tried."""

    batch_size: int
    learning_rate: float
    dropout: float


def all_settings(settings: Settings) -> Dict[str, Setting]:
    """Every combination, by the name of its run's folder; the dropout is in it where several are tried."""
    found = {}
    for one in map(Setting._make, product(settings.batch_sizes, settings.learning_rates, settings.dropouts)):
        dropout = f"-dropout{one.dropout:g}" if len(settings.dropouts) > 1 else ""
        found[f"batch{one.batch_size}-lr{one.learning_rate:g}{dropout}"] = one
    return found
