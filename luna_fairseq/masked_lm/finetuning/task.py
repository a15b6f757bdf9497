"""Description that every fine-tuning task gives of itself: its files, labels and metrics."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Tuple

from luna_fairseq.errors import InputError


@dataclass(frozen=True)
class Example:
    """Example of a task.

    Attributes:
        inputs: texts of the example: one or two sentences. For multiple choice, the passage or the question
            and then the candidates.
        label: one of the task's labels, the text of a number for regression, or None in a test set without
            answers.
    """

    inputs: Tuple[str, ...]
    label: Optional[str]


@dataclass(frozen=True)
class FineTuningTask:
    """Fine-tuning task and its published format.

    Attributes:
        name: name of the task, as in GLUE and the papers.
        inputs: number of texts of an example.
        labels: labels in the order of the model's classes, empty for regression.
        metrics: reported metrics, named as in :mod:`luna_fairseq.masked_lm.finetuning.metrics`. The first one
            chooses the best run.
        splits: published file or folder of each split, by fairseq's name of the split. "train" and "valid"
            are required.
        is_multiple_choice: True if the model scores candidates (fairseq's sentence_ranking), False if it
            classifies texts (sentence_prediction).
    """

    name: str
    inputs: int
    labels: Tuple[str, ...]
    metrics: Tuple[str, ...]
    splits: Dict[str, str]
    is_multiple_choice: ClassVar[bool] = False

    @property
    def is_regression(self) -> bool:
        """True if the task predicts a number in place of a label."""
        return not self.labels

    def read(self, folder: Path, split: str) -> List[Example]:
        """Return the examples of a split, in the order of the published files.

        Args:
            folder: folder of the published files.
            split: fairseq's name of the split.

        Raises:
            InputError: A file is missing or empty, or one of its lines is malformed. The message names the
                file and the line.
        """
        raise NotImplementedError

    def check_label(self, label: str, location: str) -> str:
        """Return a label if it is one of the task's labels.

        Args:
            label: label to check.
            location: file and line of the label, for the message.

        Raises:
            InputError: The task does not have the label.
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
