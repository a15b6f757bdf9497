"""A prepared task: the folder that fairseq's sentence_prediction and sentence_ranking read, and what is in
it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

from fairseq.data import Dictionary, indexed_dataset
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.files.writing import replacing
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask

DESCRIPTION = "task.json"
DICTIONARY = "dict.txt"
HIGHEST_SCORE = 5.0  # of STS-B; the model learns numbers from 0 to 1


@dataclass(frozen=True)
class PreparedTask:
    """What ``task.json`` says.

    Attributes:
        folder: where it is.
        task: name of the task.
        examples: split -> number of examples.
        longest: split -> tokens of its longest example, as the model reads it.
        labelled: splits with answers.
    """

    folder: Path
    task: str
    examples: Dict[str, int]
    longest: Dict[str, int]
    labelled: List[str]

    @classmethod
    def load(cls, folder: Path) -> PreparedTask:
        """Raises InputError when luna-prepare-task did not make ``folder``, or did not finish it."""
        path = folder / DESCRIPTION
        check_files(path)
        try:
            return cls(folder, **json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path} is missing: give a folder that luna-prepare-task made") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is broken: prepare the task again") from error


class PreparedWriter:
    """Writes the splits of a task beside their final names; ``finish`` puts them in place.

    Args:
        folder: the folder to be.
        task: the task.
        dictionary: dictionary of the pretrained model.
    """

    def __init__(self, folder: Path, task: FineTuningTask, dictionary: Dictionary) -> None:
        self.folder, self.task, self.dictionary = folder, task, dictionary
        self.temporary = folder / "prepare.tmp"
        self.facts: Dict[str, Any] = {"task": task.name, "examples": {}, "longest": {}, "labelled": []}
        shutil.rmtree(str(self.temporary), ignore_errors=True)
        self.names = [f"input{number}" for number in range(task.inputs)] + ["label"]
        for name in self.names:
            (self.temporary / name).mkdir(parents=True)
            if name != "label":
                dictionary.save(str(self.temporary / name / DICTIONARY))

    def write(self, split: str, examples: Sequence[Example], encoded: Iterable[Iterable[str]]) -> None:
        """One split.

        Args:
            split: fairseq's name.
            examples: its examples.
            encoded: for each input the encoded texts of all examples.
        """
        lengths = [
            self._binarise(self.temporary / f"input{number}" / split, lines, self.dictionary)
            for number, lines in enumerate(encoded)
        ]
        self.facts["examples"][split] = len(examples)
        self.facts["longest"][split] = max(map(self._length, zip(*lengths)))
        labels = [example.label for example in examples if example.label is not None]
        if len(labels) == len(examples):
            self.facts["labelled"].append(split)
            self._write_labels(self.temporary / "label" / split, labels)

    def finish(self) -> None:
        """Put all in the place of what an earlier preparation left."""
        for path in [*self.folder.glob("input*"), self.folder / "label"]:
            shutil.rmtree(str(path), ignore_errors=True)
        for name in self.names:
            os.replace(str(self.temporary / name), str(self.folder / name))
        shutil.rmtree(str(self.temporary))
        with replacing(self.folder / DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(self.facts, indent=1), encoding="utf-8")

    def files(self) -> List[str]:
        """What is in place, relative to the folder."""
        paths = (path for name in self.names for path in sorted((self.folder / name).iterdir()))
        return [DESCRIPTION, *(str(path.relative_to(self.folder)) for path in paths)]

    def _length(self, lengths: Sequence[int]) -> int:
        """Tokens of an example from those of its inputs, which end in ``</s>``: with ``<s>`` and a
        separator."""
        if self.task.is_multiple_choice:
            return 2 + lengths[0] + max(lengths[1:])
        return len(lengths) + sum(lengths)

    def _write_labels(self, path: Path, labels: Sequence[str]) -> None:
        if self.task.is_multiple_choice:
            values = [str(self.task.labels.index(label)) for label in labels]
        elif self.task.is_regression:
            values = [str(float(label) / HIGHEST_SCORE) for label in labels]
        else:
            dictionary = Dictionary()
            for label in self.task.labels:
                dictionary.add_symbol(label)
            dictionary.save(str(path.with_name(DICTIONARY)))
            self._binarise(path, labels, dictionary)
            return
        path.with_name(f"{path.name}.label").write_text("".join(f"{v}\n" for v in values), encoding="utf-8")

    @staticmethod
    def _binarise(path: Path, lines: Iterable[str], dictionary: Dictionary) -> List[int]:
        """fairseq's binary form of ``lines``; their lengths, ``</s>`` included."""
        builder = indexed_dataset.make_builder(f"{path}.bin", impl="mmap", vocab_size=len(dictionary))
        lengths = []
        for line in lines:
            tokens = dictionary.encode_line(line, append_eos=True, add_if_not_exist=False)
            builder.add_item(tokens)
            lengths.append(len(tokens))
        builder.finalize(f"{path}.idx")
        return lengths
