"""Hyperparameters of fine-tuning (section 4.3 and Table 9 of the Luna paper), as options of fairseq-train."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.files.same_run import parse_options
from luna_fairseq.masked_lm.finetuning.task import FineTuningTask

BOS, EOS = "0", "2"  # dictionary indices of <s> and </s>, as arguments of fairseq-train
LONGEST_CANDIDATE = 128  # maximum tokens in a RACE candidate. The passage fills the rest.
_ADAM = ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--adam-eps", "1e-6", "--clip-norm", "0.0"]
# Options of Settings that belong to the optimizer and the learning rate schedule.
_COMPONENTS = {
    "optimizer": ("adam_betas", "adam_eps", "weight_decay"),
    "lr_scheduler": ("warmup_updates", "total_num_update"),
}
# fairseq name of the metric that selects the best epoch, and the option that enables it.
_FAIRSEQ_METRICS = {
    "accuracy": ("accuracy", None),
    "matthews": ("mcc", "report_mcc"),
    "pearson_spearman": ("pearson_and_spearman", "report_pearson_and_spearman"),
}


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of a sweep: values to try in all combinations, and values that all runs share.

    Attributes:
        batch_sizes: batch sizes to try.
        learning_rates: learning rates to try.
        dropouts: dropout probabilities to try.
        weight_decay: weight decay of Adam.
        attention_dropout: dropout probability of attention weights.
        activation_dropout: dropout probability after the activation of the feed-forward layers.
        schedule: fairseq name of the learning rate schedule. "polynomial_decay" decays linearly to zero.
        warmup: number of warm-up updates, or a fraction of all updates if less than 1.
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
        """Return the fairseq-train options that all runs share, given the maximum number of ``updates``."""
        warmup = round(updates * self.warmup) if self.warmup < 1 else min(int(self.warmup), updates - 1)
        words = ["--weight-decay", self.weight_decay, "--attention-dropout", self.attention_dropout]
        words += ["--activation-dropout", self.activation_dropout, "--lr-scheduler", self.schedule]
        words += ["--warmup-updates", warmup]
        if self.schedule == "polynomial_decay":
            words += ["--total-num-update", updates]
        return [*_ADAM, *map(str, words)]


TABLE_9, SEARCH = "table-9", "search"  # names of the two sweeps
# Columns of Table 9 for GLUE, RACE and CommonsenseQA.
_GLUE = Settings((32,), (1e-5,), (0.1,), weight_decay=0.1, attention_dropout=0.1, activation_dropout=0.1,
                 schedule="polynomial_decay", warmup=0.06)  # fmt: skip
_RACE = Settings((64,), (1e-5,), (0.1,), weight_decay=0.01, attention_dropout=0.1, activation_dropout=0.0,
                 schedule="fixed", warmup=150)  # fmt: skip
_COMMONSENSE_QA = Settings((64,), (1e-5,), (0.2,), weight_decay=0.01, attention_dropout=0.0,
                           activation_dropout=0.1, schedule="polynomial_decay", warmup=150)  # fmt: skip
# Search grids of section 4.3 for GLUE and for question answering.
_SEARCH_GLUE: Dict[str, Any] = {"batch_sizes": (16, 32), "learning_rates": (5e-6, 1e-5, 2e-5)}
_SEARCH_ANSWERS: Dict[str, Any] = {"learning_rates": (1e-5, 2e-5, 3e-5), "dropouts": (0.0, 0.1, 0.2)}


def choose_settings(task: FineTuningTask, sweep: str) -> Settings:
    """Return a task's hyperparameters, from Table 9 ("table-9") or the grid of section 4.3 ("search")."""
    settings = {"RACE": _RACE, "CommonsenseQA": _COMMONSENSE_QA}.get(task.name, _GLUE)
    if task.name == "SST-2":
        # As in the authors' command. Table 9 has 0.1.
        settings = replace(settings, activation_dropout=0.0)
    if sweep == TABLE_9:
        return settings
    return replace(settings, **(_SEARCH_ANSWERS if task.is_multiple_choice else _SEARCH_GLUE))


def leave_out_replaced(words: Sequence[str], given: Sequence[str]) -> List[str]:
    """Return the options ``words`` without those that a replaced component does not have.

    ``given`` holds the user's options of fairseq-train. For example, ``--lr-scheduler inverse_sqrt`` removes
    ``--total-num-update``, an option of the schedule polynomial_decay.
    """
    # Imported here so that the sweep names can be used without importing fairseq.
    from luna_fairseq.commands.recipe_options import replaced_options

    options, chosen = parse_options(words), parse_options(given)
    for group, names in _COMPONENTS.items():
        name = chosen.get(f"--{group.replace('_', '-')}")
        for option in replaced_options(group, names, name) if name else ():
            options.pop(f"--{option.replace('_', '-')}", None)
    return [word for name, value in options.items() for word in (name, *value.split())]


def task_options(task: FineTuningTask, head: str) -> List[str]:
    """Return the fairseq-train options that depend on the task, such as criterion and input format.

    ``head`` is the name of the classification head to train. The options include the number of classes and
    the metric that selects the best checkpoint.
    """
    kind = "sentence_ranking" if task.is_multiple_choice else "sentence_prediction"
    words = ["--task", kind, "--criterion", kind, "--init-token", BOS, "--shorten-method", "truncate"]
    words += ["--ranking-head-name" if task.is_multiple_choice else "--classification-head-name", head]
    words += ["--num-classes", str(max(1, len(task.labels)))]
    # The first of two texts ends with </s>, and another </s> precedes the second, except in CommonsenseQA.
    if task.name != "CommonsenseQA":
        words += ["--separator-token", EOS]
    if task.name == "RACE":
        words += ["--max-option-length", str(LONGEST_CANDIDATE)]
    if task.is_regression:
        words.append("--regression-target")
    metric, flag = _FAIRSEQ_METRICS[task.metrics[0]]
    if flag is not None:
        # Imported here so that the sweep names can be used without importing fairseq.
        from fairseq.criterions.sentence_prediction import SentencePredictionConfig

        if not hasattr(SentencePredictionConfig(), flag):
            raise InputError(
                f"this fairseq does not compute the metric of {task.name}. Install fairseq-fixed 0.12.3."
            )
        words.append(f"--{flag.replace('_', '-')}")
    return [*words, "--best-checkpoint-metric", metric, "--maximize-best-checkpoint-metric"]


def number_of_updates(examples: int, batch_size: int, epochs: int) -> int:
    """Return the number of updates in a training run. The last batch of an epoch may be smaller.

    Example:
        >>> number_of_updates(examples=100, batch_size=32, epochs=2)
        8
    """
    return epochs * math.ceil(examples / batch_size)


def accumulation_options(batch_size: int, at_a_time: int) -> List[str]:
    """Return the fairseq-train options for gradient accumulation, with ``at_a_time`` examples at once.

    Example:
        >>> accumulation_options(batch_size=32, at_a_time=8)
        ['--batch-size', '8', '--update-freq', '4']
    """
    at_a_time = min(at_a_time, batch_size)
    if batch_size % at_a_time:
        raise InputError(
            f"--at-a-time {at_a_time} does not divide the batch size {batch_size}. Give a divisor of it."
        )
    return ["--batch-size", str(at_a_time), "--update-freq", str(batch_size // at_a_time)]


class Setting(NamedTuple):
    """Hyperparameters of one run in a sweep: batch size, peak learning rate and dropout probability."""

    batch_size: int
    learning_rate: float
    dropout: float


def enumerate_settings(settings: Settings) -> Dict[str, Setting]:
    """Return a dictionary from run name to hyperparameters, for all runs of a sweep.

    The name contains the dropout rate only if the sweep tries several dropout rates.

    Example:
        >>> list(enumerate_settings(replace(_GLUE, learning_rates=(1e-5, 2e-5))))
        ['batch32-lr1e-05', 'batch32-lr2e-05']
    """
    runs = {}
    values = product(settings.batch_sizes, settings.learning_rates, settings.dropouts)
    for setting in map(Setting._make, values):
        dropout = f"-dropout{setting.dropout:g}" if len(settings.dropouts) > 1 else ""
        runs[f"batch{setting.batch_size}-lr{setting.learning_rate}{dropout}"] = setting
    return runs
