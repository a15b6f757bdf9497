"""GLUE's tasks (Wang et al., 2019), from the tab-separated files of its folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

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


def _task(name: str, texts: str, labels: str, metrics: str, **options: Any) -> GlueTask:
    columns, names = tuple(texts.split()), tuple(labels.split())
    splits = options.pop("splits", _SPLITS)
    return GlueTask(name, len(columns), names, tuple(metrics.split()), splits, columns, **options)


_MNLI_SPLITS = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
}
_MRPC_COLUMNS = ("#1 String", "#2 String")

GLUE = (
    _task("SST-2", "sentence", "0 1", "accuracy", headerless=("sentence", "label")),
    _task("QNLI", "question sentence", "entailment not_entailment", "accuracy"),
    _task("QQP", "question1 question2", "0 1", "accuracy f1", label="is_duplicate", broken_lines=True),
    _task(
        "MNLI",
        "sentence1 sentence2",
        "contradiction neutral entailment",
        "accuracy",
        label="gold_label",
        splits=_MNLI_SPLITS,
    ),
    _task("RTE", "sentence1 sentence2", "entailment not_entailment", "accuracy"),
    GlueTask("MRPC", 2, ("0", "1"), ("accuracy", "f1"), _SPLITS, _MRPC_COLUMNS, label="Quality"),
    _task("CoLA", "sentence", "0 1", "matthews", headerless=("source", "label", "mark", "sentence")),
    _task("STS-B", "sentence1 sentence2", "", "pearson_spearman pearson spearman", label="score"),
)
