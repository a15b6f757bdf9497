"""What every fine-tuning task says about itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Tuple

from luna_fairseq.errors import InputError


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        inputs: the texts: a sentence or two; of multiple choice the passage or question, then the candidates.
        label: one of the task's labels; a number as text for regression; None in a test set without answers.
    """

    inputs: Tuple[str, ...]
    label: Optional[str]


@dataclass(frozen=True)
class FineTuningTask:
    """A task and its published format.

    Attributes:
        name: as GLUE and the papers call it.
        inputs: texts of an example.
        labels: the set of labels, in the order of the model's classes; empty for regression.
        metrics: what is reported, by the names of :mod:`luna_fairseq.masked_lm.finetuning.metrics`; the first
            one chooses.
        splits: fairseq's name of a split -> the published file or folder; train and valid must be there.
    """

    name: str
    inputs: int
    labels: Tuple[str, ...]
    metrics: Tuple[str, ...]
    splits: Dict[str, str]
    # A score for each candidate, by fairseq's sentence_ranking; otherwise sentence_prediction.
    is_multiple_choice: ClassVar[bool] = False

    @property
    def is_regression(self) -> bool:
        return not self.labels

    def read(self, folder: Path, split: str) -> List[Example]:
        """The examples of a split, in the order of the files.

        Args:
            folder: where the published files are.
            split: fairseq's name.

        Raises:
            InputError: a file is missing or empty, or a line of it is malformed; names the file and the line.
        """
        raise NotImplementedError

    def check_label(self, label: str, place: str) -> str:
        """``label``, if it is one of the task's. Raises InputError with ``place`` otherwise."""
        if self.is_regression:
            with suppress(ValueError):
                if 0.0 <= float(label) <= 5.0:
                    return label
            raise InputError(f"{place}: {label!r} is no similarity from 0 to 5")
        if label not in self.labels:
            raise InputError(
                f"{place}: {label!r} is no label of {self.name}; its labels: {', '.join(self.labels)}"
            )
        return label
