"""Conversion of a fine-tuning task's published files to fairseq's format (``luna-prepare-task``)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Tuple

from fairseq.data import Dictionary, encoders
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CHECKSUMS, digest, file_stamps, remove_checksums, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.regular import is_data
from luna_fairseq.files.writing import copy_file
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.prepared import (
    DESCRIPTION,
    DICTIONARY,
    PreparedTask,
    PreparedWriter,
    find_input_folders,
)
from luna_fairseq.masked_lm.prepare_task import TaskOptions
from luna_fairseq.models.tokenizers import find_tokenizer
from luna_fairseq.text.encoders import (
    Encoder,
    check_unknown,
    gpt2_encoder,
    print_unknown,
    sentencepiece_line_encoder,
    words_encoder,
)
from luna_fairseq.text.pieces import check_tokenizer, detect_encoding

# Version of the output. Increase it when the output changes, so that tasks are prepared again.
VERSION = 2


class TaskPreparation:
    """Conversion of the published files of a fine-tuning task into the folders that fairseq reads."""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options
        self.task = TASKS[options.task]
        path = options.vocabulary / DICTIONARY
        if not path.is_file():
            raise InputError(f"{path} does not exist. Give the folder of the pretrained model's data.")
        self.dictionary = Dictionary.load(str(path))
        self.encoder, self.tokenizer = load_tokenizer(options.vocabulary, self.dictionary, options.workers)

    def run(self) -> None:
        """Prepare the task unless the output is up to date, and print the size of each split."""
        destdir = self.options.destdir
        owned = [path.name for path in find_input_folders(destdir)]
        owned += ["label", DESCRIPTION, CHECKSUMS]
        owned += [path.name for path in self.tokenizer if path.parent.resolve() != destdir.resolve()]
        steps = FinishedSteps(destdir, "prepare_task.json", owned)
        paths = [self.options.folder / name for name in self.task.splits.values()]
        published = (p for path in paths for p in (path, *path.rglob("*")) if p.is_file() and is_data(p.name))
        files = [*sorted(published), self.options.vocabulary / DICTIONARY, *self.tokenizer]
        key = digest(VERSION, self.task.name, file_stamps(files))
        counts = steps.do("prepare", key, self._prepare, announce=False)
        self._check_unknown(counts["unknown"], counts["tokens"])
        prepared = PreparedTask.load(destdir)
        for split, number in prepared.examples.items():
            answers = "" if split in prepared.labelled else ", without answers"
            print(f"{split}: {number:,} examples, the longest of {prepared.longest[split]} tokens{answers}")
            print_unknown(split, counts)

    def _prepare(self) -> Tuple[List[str], Dict[str, Any]]:
        """Encode and write all splits. Return the written file names, and the token counts per split."""
        # All files are read before anything is written, so that invalid lines are found first. Test sets and
        # additional validation sets may be missing.
        examples = {
            split: self.task.read(self.options.folder, split)
            for split, name in self.task.splits.items()
            if split in ("train", "valid") or (self.options.folder / name).exists()
        }
        writer = PreparedWriter(self.options.destdir, self.task, self.dictionary)
        for split in examples:
            writer.write(split, examples[split], self.encoder)
        self._check_unknown(writer.unknown, writer.tokens)
        remove_checksums(self.options.destdir)
        names = writer.finish()
        for path in self.tokenizer:
            copy_file(path, self.options.destdir / path.name)
            names.append(path.name)
        names.append(write_checksums(self.options.destdir, names))
        return names, {"unknown": writer.unknown, "tokens": writer.tokens}

    def _check_unknown(self, unknown: Mapping[str, int], tokens: Mapping[str, int]) -> None:
        """Raise InputError if more than ``--max-unknown`` percent of a split's tokens are unknown.

        ``unknown`` and ``tokens`` map splits to token counts. A dictionary of whole words is not checked.
        """
        if self.tokenizer:  # a dictionary of words may be incomplete
            check_unknown(unknown, tokens, self.options.max_unknown)


def load_tokenizer(folder: Path, dictionary: Dictionary, workers: int) -> Tuple[Encoder, List[Path]]:
    """Load a pretrained model's tokenizer from the folder that contains its dictionary.

    Returns:
        - encoder that converts text to subword pieces, or to whole words if there is no tokenizer.
        - tokenizer files. Empty if the dictionary consists of whole words.
    """
    options = find_tokenizer([folder])
    if not options:
        encoding = detect_encoding(dictionary)
        if encoding is not None:
            raise InputError(
                f"{folder / DICTIONARY} holds pieces of {encoding}, but its folder has no tokenizer. Copy "
                "sentencepiece.bpe.model (or GPT-2's encoder.json and vocab.bpe) there."
            )
        return words_encoder(), []
    check_tokenizer(encoders.build_bpe(argparse.Namespace(**options)), dictionary, options=options)
    make: Callable[..., Encoder] = gpt2_encoder if options["bpe"] == "gpt2" else sentencepiece_line_encoder
    files = [Path(path) for name, path in options.items() if name != "bpe"]
    return make(*files, workers), files
