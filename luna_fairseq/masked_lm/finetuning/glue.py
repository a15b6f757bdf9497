"""GLUE's tasks (Wang et al., 2019), from the tab-separated files of its folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from luna_fairseq.errors import InputError
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask
from luna_fairseq.text.bitext import read_lines

_SPLITS = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True)
class GlueTask(FineTuningTask):
    """Task of GLUE, read from tab-separated files.

    Attributes:
        texts: names of the columns that hold the inputs.
        label: name of the column that holds the label. Test sets do not have it.
        headerless: names of the columns in files without a header line. Empty if all files have one.
        broken_lines: True if the published training file has truncated lines. They are skipped and counted.
    """

    texts: Tuple[str, ...] = ()
    label: str = "label"
    headerless: Tuple[str, ...] = ()
    broken_lines: bool = False

    def read(self, folder: Path, split: str) -> List[Example]:
        """Return the examples of a split; see :meth:`FineTuningTask.read`.

        Lines with a wrong number of columns raise an InputError, or are skipped if ``broken_lines`` is True.

        Args:
            folder: folder of the published files.
            split: fairseq's name of the split.
        """
        path = folder / self.splits[split]
        rows = [(number, line.split("\t")) for number, line in enumerate(read_lines(path), 1) if line]
        if not rows:
            raise InputError(f"{path} is empty. Give the published file.")
        columns = self._columns(rows[0][1], path, split)
        if columns is not self.headerless:
            rows = rows[1:]
        examples, broken = [], []
        for number, fields in rows:
            if len(fields) == len(columns):
                examples.append(self._example(dict(zip(columns, fields)), f"{path}, line {number}", split))
            elif self.broken_lines:
                broken.append(number)
            else:
                raise InputError(
                    f"{path}, line {number}: expected {len(columns)} columns ({', '.join(columns)}), got "
                    f"{len(fields)}. Correct or remove the line."
                )
        if broken:
            print(f"{path}: {len(broken)} broken lines skipped, the first being line {broken[0]}")
        if not examples:
            raise InputError(f"{path} has no examples. Give the published file.")
        return examples

    def _columns(self, first: Sequence[str], path: Path, split: str) -> Sequence[str]:
        """Return the names of the columns from the first line of a file.

        Args:
            first: fields of the first line.
            path: file, for the message.
            split: fairseq's name of the split.

        Raises:
            InputError: A column that the task needs is missing.
        """
        names = [name.strip() for name in first]
        needed = self.texts if split.startswith("test") else (*self.texts, self.label)
        missing = [name for name in needed if name not in names]
        if not missing:
            return names
        if len(first) == len(self.headerless):
            return self.headerless
        raise InputError(
            f"{path}, line 1: there is no column {missing[0]!r}. The first line of {self.name} must name the "
            f"columns {', '.join(needed)}, separated by tabs."
        )

    def _example(self, row: Dict[str, str], location: str, split: str) -> Example:
        """Return the example that the columns of a line hold.

        Args:
            row: value of each column.
            location: file and line, for messages.
            split: fairseq's name of the split.

        Raises:
            InputError: A text is empty, or the label is unknown.
        """
        texts = tuple(row[name].strip() for name in self.texts)
        if "" in texts and not (self.broken_lines or split.startswith("test")):
            raise InputError(
                f"{location}: {self.texts[texts.index('')]} is empty. Correct or remove the line."
            )
        label = row.get(self.label)
        return Example(texts, None if label is None else self.check_label(label.strip(), location))


_MNLI_SPLITS = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
_PAIR, _COLA = ("sentence1", "sentence2"), ("source", "label", "mark", "sentence")
_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "neutral", "entailment")
_ACCURACY, _F1 = ("accuracy",), ("accuracy", "f1")
_CORRELATIONS = ("pearson_spearman", "pearson", "spearman")

GLUE = (
    GlueTask("SST-2", 1, _BINARY, _ACCURACY, _SPLITS, ("sentence",), headerless=("sentence", "label")),
    GlueTask("QNLI", 2, _ENTAILMENT, _ACCURACY, _SPLITS, ("question", "sentence")),
    GlueTask("QQP", 2, _BINARY, _F1, _SPLITS, ("question1", "question2"), "is_duplicate", broken_lines=True),
    GlueTask("MNLI", 2, _INFERENCE, _ACCURACY, _MNLI_SPLITS, _PAIR, "gold_label"),
    GlueTask("RTE", 2, _ENTAILMENT, _ACCURACY, _SPLITS, _PAIR),
    GlueTask("MRPC", 2, _BINARY, _F1, _SPLITS, ("#1 String", "#2 String"), "Quality"),
    GlueTask("CoLA", 1, _BINARY, ("matthews",), _SPLITS, ("sentence",), headerless=_COLA),
    GlueTask("STS-B", 2, (), _CORRELATIONS, _SPLITS, _PAIR, "score"),
)
