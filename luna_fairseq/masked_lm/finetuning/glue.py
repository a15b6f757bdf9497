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
    """A task of GLUE.

    Attributes:
        texts: columns of the inputs.
        label: column of the label; test sets do not have it.
        headerless: columns of files whose first line is not their names; empty where all have names.
        broken_lines: the published training file has lines that break off: they are left out, and counted.
    """

    texts: Tuple[str, ...] = ()
    label: str = "label"
    headerless: Tuple[str, ...] = ()
    broken_lines: bool = False

    def read(self, folder: Path, split: str) -> List[Example]:
        path = folder / self.splits[split]
        rows = [(number, line.split("\t")) for number, line in enumerate(read_lines(path), 1) if line]
        if not rows:
            raise InputError(f"{path} is empty")
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
                    f"{path}, line {number}: there are {len(fields)} columns instead of {len(columns)} "
                    f"({', '.join(columns)}): correct or remove the line"
                )
        if broken:
            print(f"{path}: {len(broken)} broken lines left out, the first being line {broken[0]}")
        if not examples:
            raise InputError(f"{path} has no examples")
        return examples

    def _columns(self, first: Sequence[str], path: Path, split: str) -> Sequence[str]:
        names = [name.strip() for name in first]
        needed = self.texts if split.startswith("test") else (*self.texts, self.label)
        missing = [name for name in needed if name not in names]
        if not missing:
            return names
        if len(first) == len(self.headerless):
            return self.headerless
        raise InputError(
            f"{path}, line 1: there is no column {missing[0]!r}; {self.name} has the columns "
            f"{', '.join(needed)}, named in the first line and separated by tabs"
        )

    def _example(self, row: Dict[str, str], place: str, split: str) -> Example:
        texts = tuple(row[name].strip() for name in self.texts)
        if "" in texts and not (self.broken_lines or split.startswith("test")):
            raise InputError(f"{place}: {self.texts[texts.index('')]} is empty: correct or remove the line")
        label = row.get(self.label)
        return Example(texts, None if label is None else self.check_label(label.strip(), place))


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
