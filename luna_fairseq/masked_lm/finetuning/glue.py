"""GLUE tasks (Wang et al., 2019), read from their tab-separated files."""

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
    """GLUE task whose examples are lines of tab-separated files.

    Attributes:
        text_columns: names of the columns that contain the texts of an example.
        label_column: name of the column that contains the label. Test sets do not have this column.
        headerless_columns: names of all columns if the files have no header line, otherwise empty.
        skips_broken_lines: tolerate the defects of the QQP training file: skip lines with the wrong number of
            columns, except in a test set, and accept empty texts.
    """

    text_columns: Tuple[str, ...] = ()
    label_column: str = "label"
    headerless_columns: Tuple[str, ...] = ()
    skips_broken_lines: bool = False

    def read(self, folder: Path, split: str) -> List[Example]:
        """Read the examples of a split in the order of the file."""
        path, is_test = folder / self.splits[split], split.startswith("test")
        rows = [(number, line.split("\t")) for number, line in enumerate(read_lines(path), 1) if line]
        if not rows:
            raise InputError(f"{path} is empty. Give the published file.")
        columns = self._find_columns(rows[0][1], path, split)
        if columns is not self.headerless_columns:
            rows = rows[1:]
        examples, broken = [], []
        for number, fields in rows:
            if is_test and len(fields) == len(columns) - 1 and columns[-1] in self.text_columns:
                fields.append("")  # an empty text, whose tab was removed with the space around the line
            if len(fields) == len(columns):
                examples.append(
                    self._parse_example(dict(zip(columns, fields)), f"{path}, line {number}", split)
                )
            elif self.skips_broken_lines and not is_test:
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

    def _find_columns(self, first_line: Sequence[str], path: Path, split: str) -> Sequence[str]:
        """Return the column names of a file: its header or, if there is no header, ``headerless_columns``.

        ``first_line`` holds the fields of the first line. Raises InputError if a required column is missing.
        """
        names = [name.strip() for name in first_line]
        needed = self.text_columns if split.startswith("test") else (*self.text_columns, self.label_column)
        missing = [name for name in needed if name not in names]
        if not missing:
            return names
        if len(first_line) == len(self.headerless_columns):
            return self.headerless_columns
        raise InputError(
            f"{path}, line 1: there is no column {missing[0]!r}. The first line of {self.name} must name the "
            f"columns {', '.join(needed)}, separated by tabs."
        )

    def _parse_example(self, row: Dict[str, str], location: str, split: str) -> Example:
        """Convert a line, given as a dictionary from column name to field, to an example.

        The label is None if there is no label column. ``location`` names the line in error messages.
        """
        texts = tuple(row[name].strip() for name in self.text_columns)
        if "" in texts and not (self.skips_broken_lines or split.startswith("test")):
            raise InputError(
                f"{location}: {self.text_columns[texts.index('')]} is empty. Correct or remove the line."
            )
        label = row.get(self.label_column)
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
    GlueTask(
        "SST-2", 1, _BINARY, _ACCURACY, _SPLITS, ("sentence",), headerless_columns=("sentence", "label")
    ),
    GlueTask("QNLI", 2, _ENTAILMENT, _ACCURACY, _SPLITS, ("question", "sentence")),
    GlueTask(
        "QQP", 2, _BINARY, _F1, _SPLITS, ("question1", "question2"), "is_duplicate", skips_broken_lines=True
    ),
    GlueTask("MNLI", 2, _INFERENCE, _ACCURACY, _MNLI_SPLITS, _PAIR, "gold_label"),
    GlueTask("RTE", 2, _ENTAILMENT, _ACCURACY, _SPLITS, _PAIR),
    GlueTask("MRPC", 2, _BINARY, _F1, _SPLITS, ("#1 String", "#2 String"), "Quality"),
    GlueTask("CoLA", 1, _BINARY, ("matthews",), _SPLITS, ("sentence",), headerless_columns=_COLA),
    GlueTask("STS-B", 2, (), _CORRELATIONS, _SPLITS, _PAIR, "score"),
)
