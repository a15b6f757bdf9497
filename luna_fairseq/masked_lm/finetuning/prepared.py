"""Reader and writer of data for fairseq's fine-tuning tasks sentence_prediction and sentence_ranking."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import check_files
from luna_fairseq.files.writing import write_text
from luna_fairseq.masked_lm.finetuning.settings import LONGEST_CANDIDATE
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask
from luna_fairseq.progress import progress
from luna_fairseq.text.encoders import Encoder, words_encoder, write_texts
from luna_fairseq.text.indexed import encoded_texts

DESCRIPTION = "task.json"
DICTIONARY = "dict.txt"
# Highest score of STS-B. Scores are divided by this number, so that the model predicts numbers from 0 to 1.
HIGHEST_SCORE = 5.0


@dataclass(frozen=True)
class PreparedTask:
    """Description of a fine-tuning task that is prepared for fairseq, read from ``task.json``.

    Attributes:
        folder: folder of the prepared task.
        task: name of the task, such as "RTE".
        examples: number of examples per split.
        longest: number of tokens in the longest example per split, including special tokens.
        labelled: splits with answers.
    """

    folder: Path
    task: str
    examples: Dict[str, int]
    longest: Dict[str, int]
    labelled: List[str]

    @classmethod
    def load(cls, folder: Path) -> PreparedTask:
        """Read a folder's ``task.json``. Raise InputError if the file is missing or damaged."""
        path = folder / DESCRIPTION
        check_files(path)
        try:
            return cls(folder, **json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path} is missing. Give a folder that luna-prepare-task wrote.") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is damaged. Prepare the task again.") from error


def find_input_folders(folder: Path) -> List[Path]:
    """Return the folders input0, input1 and so on in the folder of a prepared task."""
    return [path for path in folder.glob("input*") if path.name[len("input") :].isdecimal()]


class PreparedWriter:
    """Writer of a task's data for fairseq. Files appear in ``folder`` only when :meth:`finish` is called.

    Attributes:
        tokens: number of tokens per split.
        unknown: number of tokens per split that are not in the dictionary.
    """

    def __init__(self, folder: Path, task: FineTuningTask, dictionary: Dictionary) -> None:
        self.folder, self.task, self.dictionary = folder, task, dictionary
        self.temporary = folder / "prepare.tmp"
        self.tokens: Counter = Counter()
        self.unknown: Counter = Counter()
        self.description: Dict[str, Any] = {"task": task.name, "examples": {}, "longest": {}, "labelled": []}
        shutil.rmtree(str(self.temporary), ignore_errors=True)
        self.names = [*(f"input{number}" for number in range(task.inputs)), "label"]
        for name in self.names:
            (self.temporary / name).mkdir(parents=True)
        # The names are recorded here instead of listed at the end, so that a missing dictionary is detected.
        self.written = {f"{name}/{DICTIONARY}" for name in self.names[:-1]}
        for name in self.written:
            dictionary.save(str(self.temporary / name))

    def write(self, split: str, examples: Sequence[Example], encoder: Encoder) -> None:
        """Encode the examples of a split, and write them to the temporary folder.

        Labels are written only if every example has a label. The token counts and description are updated.
        """
        lengths = []
        for number in range(self.task.inputs):
            texts = progress([example.inputs[number] for example in examples], f"encode {split}")
            path = self.temporary / f"input{number}" / split
            pieces, unknown = _binarise(path, texts, encoder, self.dictionary)
            self.written |= {f"{path.parent.name}/{split}.{ending}" for ending in ("bin", "idx")}
            lengths.append(pieces)
            self.tokens[split] += int(pieces.sum())
            self.unknown[split] += unknown
        self.description["examples"][split] = len(examples)
        self.description["longest"][split] = int(self._lengths(np.stack(lengths)).max())
        labels = [example.label for example in examples if example.label is not None]
        if len(labels) == len(examples):
            self.description["labelled"].append(split)
            self._write_labels(self.temporary / "label" / split, labels)

    def finish(self) -> List[str]:
        """Move the temporary files into the final folder, replacing earlier ones, and return their names."""
        for path in [*find_input_folders(self.folder), self.folder / "label"]:
            shutil.rmtree(str(path), ignore_errors=True)
        for name in self.names:
            os.replace(str(self.temporary / name), str(self.folder / name))
        shutil.rmtree(str(self.temporary))
        write_text(self.folder / DESCRIPTION, json.dumps(self.description, indent=1))
        return [DESCRIPTION, *sorted(self.written)]

    def _lengths(self, pieces: np.ndarray) -> np.ndarray:
        """Return the number of tokens [B] in each example's longest model input, including special tokens.

        ``pieces`` [N, B] holds the number of subwords in each of the N texts of B examples.
        """
        if self.task.is_multiple_choice:
            # A candidate has <s> and </s>. The other text ends with </s>, and often begins with a separator.
            candidates = 2 + pieces[1:].max(axis=0)
            if self.task.name == "RACE":
                candidates = np.minimum(candidates, LONGEST_CANDIDATE)
            separator = self.task.name != "CommonsenseQA"
            return candidates + separator + pieces[0] + 1
        return 2 * len(pieces) + pieces.sum(axis=0)

    def _write_labels(self, path: Path, labels: Sequence[str]) -> None:
        """Write the labels of a split in the format that the fairseq task reads.

        For multiple choice, a label is the index of the correct candidate. For regression, it is a score from
        0 to 1. Otherwise, it is an entry in a separate dictionary.
        """
        if self.task.is_multiple_choice:
            values = [str(self.task.labels.index(label)) for label in labels]
        elif self.task.is_regression:
            values = [str(float(label) / HIGHEST_SCORE) for label in labels]
        else:
            dictionary = Dictionary()
            for label in self.task.labels:
                dictionary.add_symbol(label)
            dictionary.save(str(path.with_name(DICTIONARY)))
            _binarise(path, labels, words_encoder(), dictionary)
            self.written |= {f"label/{name}" for name in (DICTIONARY, f"{path.name}.bin", f"{path.name}.idx")}
            return
        path.with_name(f"{path.name}.label").write_text("".join(f"{v}\n" for v in values), encoding="utf-8")
        self.written.add(f"label/{path.name}.label")


def _binarise(
    path: Path, lines: Iterable[str], encoder: Encoder, dictionary: Dictionary
) -> Tuple[np.ndarray, int]:
    """Encode N lines to fairseq's binary files. Return token counts [N] and the number of unknown tokens."""
    with encoded_texts(path.with_name(f"{path.name}.tmp"), [path.name]) as texts:
        lengths = [np.zeros(0, np.int64)]
        for batch in encoder.encode(lines):
            texts[path.name].add(*batch)
            lengths.append(batch[1])
        counts = write_texts([(path.name, texts[path.name], path, dictionary)], {}, encoder)
        return np.concatenate(lengths), counts["unknown"][path.name]
