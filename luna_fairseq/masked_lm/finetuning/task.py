"""Base class of fine-tuning tasks, with their published files, labels and metrics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Tuple

from luna_fairseq.errors import InputError


@dataclass(frozen=True)
class Example:
    """Input texts and label of one example in a fine-tuning task.

    Attributes:
        inputs: one or two sentences or, for multiple choice, the passage or question followed by all
            candidates.
        label: class label, a number as text for regression, or None if the test set has no answers.
    """

    inputs: Tuple[str, ...]
    label: Optional[str]


@dataclass(frozen=True)
class FineTuningTask:
    """Task on which a pretrained model is fine-tuned, and the format of its published files.

    Attributes:
        name: name of the task, such as "RTE".
        inputs: number of texts per example.
        labels: labels in the order of the model's classes. Empty for regression.
        metrics: names of the metrics to report, from :mod:`luna_fairseq.masked_lm.finetuning.metrics`. The
            first metric selects the best run.
        splits: dictionary from fairseq's split name to published file or folder, such as {"valid":
            "dev.tsv"}. "train" and "valid" are required.
        is_multiple_choice: whether the model scores candidates (fairseq's sentence_ranking) instead of
            classifying texts (sentence_prediction).
    """

    name: str
    inputs: int
    labels: Tuple[str, ...]
    metrics: Tuple[str, ...]
    splits: Dict[str, str]
    is_multiple_choice: ClassVar[bool] = False

    @property
    def is_regression(self) -> bool:
        """True if the task predicts a number instead of a class."""
        return not self.labels

    def read(self, folder: Path, split: str) -> List[Example]:
        """Read the examples of a split, such as "valid", in the order of the published files."""
        raise NotImplementedError

    def check_label(self, label: str, location: str) -> str:
        """Return a valid label. If the label is invalid, raise InputError with ``location`` in the message.

        In regression tasks, valid labels are numbers from 0 to 5.
        """
        if self.is_regression:
            with suppress(ValueError):
                if 0.0 <= float(label) <= 5.0:
                    return label
            raise InputError(
                f"{location}: expected a similarity from 0 to 5, got {label!r}. Correct the line."
            )
        if label not in self.labels:
            raise InputError(
                f"{location}: expected a label of {self.name} ({', '.join(self.labels)}), got {label!r}. "
                "Correct the line."
            )
        return label
