"""Convert a fine-tuning task's published files to fairseq's format. ``luna-prepare-task`` runs this code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from fairseq.data import Dictionary, encoders
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import digest, file_stamps, remove_checksums, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.regular import is_data
from luna_fairseq.files.writing import copy_file
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.prepared import DESCRIPTION, DICTIONARY, PreparedTask, PreparedWriter
from luna_fairseq.models.tokenizers import find_tokenizer
from luna_fairseq.text.encoders import (
    Encoder,
    check_unknown,
    describe_unknown,
    gpt2_encoder,
    sentencepiece_line_encoder,
    words_encoder,
)
from luna_fairseq.text.pieces import check_tokenizer, detect_encoding

# Version of the output. Increase it when the output changes, so that tasks are prepared again.
VERSION = 1


class TaskPreparation:
    """Conversion of a task's published files into the folders that fairseq reads.

    Args:
        args: parsed command-line arguments of ``luna-prepare-task``.

    Raises:
        InputError: The vocabulary folder contains no dictionary, or its tokenizer does not match the
            dictionary.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.task = TASKS[args.task]
        path = args.vocabulary / DICTIONARY
        if not path.is_file():
            raise InputError(f"{path} does not exist. Give the folder of the pretrained model's data.")
        self.dictionary = Dictionary.load(str(path))
        self.encoder, self.tokenizer = load_tokenizer(args.vocabulary, self.dictionary, args.workers)

    def run(self) -> None:
        """Prepare the task unless the same input has already been prepared, and print the split sizes.

        Raises:
            InputError: A published file is missing or malformed, or too many tokens are unknown.
        """
        steps = FinishedSteps(self.args.destdir, "prepare_task.json", ["input0", "label", DESCRIPTION])
        paths = [self.args.folder / name for name in self.task.splits.values()]
        published = (p for path in paths for p in (path, *path.rglob("*")) if p.is_file() and is_data(p.name))
        files = [*sorted(published), self.args.vocabulary / DICTIONARY, *self.tokenizer]
        key = digest(VERSION, self.task.name, file_stamps(files))
        steps.do("prepare", key, self._prepare, announce=False)
        prepared = PreparedTask.load(self.args.destdir)
        for split, number in prepared.examples.items():
            answers = "" if split in prepared.labelled else ", without answers"
            print(f"{split}: {number:,} examples, the longest of {prepared.longest[split]} tokens{answers}")

    def _prepare(self) -> Tuple[List[str], Dict[str, Any]]:
        """Encode and write all splits. Test sets and additional validation sets may be missing.

        Returns:
            names: names of the written files.
            results: an empty dictionary, because this step has no other results.
        """
        # All files are read before anything is written, so that invalid lines are found first. Test sets and
        # additional validation sets may be missing.
        examples = {
            split: self.task.read(self.args.folder, split)
            for split, name in self.task.splits.items()
            if split in ("train", "valid") or (self.args.folder / name).exists()
        }
        writer = PreparedWriter(self.args.destdir, self.task, self.dictionary)
        for split in examples:
            writer.write(split, examples[split], self.encoder)
            if writer.unknown[split]:
                print(f"{split}: {describe_unknown(writer.unknown[split], writer.tokens[split])}")
        if self.tokenizer:  # a dictionary of words may be incomplete
            check_unknown(writer.unknown, writer.tokens, self.args.max_unknown)
        remove_checksums(self.args.destdir)
        names = writer.finish()
        for path in self.tokenizer:
            copy_file(path, self.args.destdir / path.name)
            names.append(path.name)
        return [*names, write_checksums(self.args.destdir, names)], {}


def load_tokenizer(folder: Path, dictionary: Dictionary, workers: int) -> Tuple[Encoder, List[Path]]:
    """Load the tokenizer of a pretrained model.

    Args:
        folder: folder that contains the dictionary and the tokenizer of the pretrained model.
        dictionary: dictionary of the pretrained model.
        workers: number of worker processes that encode text.

    Returns:
        encoder: encoder that converts text to pieces.
        files: tokenizer files. Empty if the dictionary consists of whole words.

    Raises:
        InputError: The tokenizer is missing, or does not match the dictionary.
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
    check_tokenizer(encoders.build_bpe(argparse.Namespace(**options)), dictionary)
    make: Callable[..., Encoder] = gpt2_encoder if options["bpe"] == "gpt2" else sentencepiece_line_encoder
    files = [Path(path) for name, path in options.items() if name != "bpe"]
    return make(*files, workers), files
