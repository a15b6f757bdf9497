"""``luna-prepare-task``: from a fine-tuning task's published files to the folder that fairseq's tasks read.

FOLDER holds the files as they are published: GLUE's tab-separated files of one task (train.tsv, dev.tsv,
...), the folders train, dev and test of RACE, or the .jsonl files of CommonsenseQA. The text is encoded with
the tokenizer and the dictionary of the pretrained model. DIR then holds input0, input1, ... and label for
fairseq's sentence_prediction (sentence_ranking for multiple choice), and the tokenizer's files. Started
again, it does nothing unless something changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from fairseq.data import Dictionary, encoders
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import digest, forget_checksums, stamps, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.regular import is_data
from luna_fairseq.files.writing import copy_file
from luna_fairseq.masked_lm.finetuning import TASKS
from luna_fairseq.masked_lm.finetuning.prepared import DESCRIPTION, DICTIONARY, PreparedTask, PreparedWriter
from luna_fairseq.models.tokenizers import find_tokenizer
from luna_fairseq.text.encoders import (
    Encoder,
    check_unknown,
    foreign_sentencepiece_encoder,
    gpt2_encoder,
    share_unknown,
    words_encoder,
)
from luna_fairseq.text.pieces import check_tokenizer, encoding_of

PROGRAM = "luna-prepare-task"
VERSION = 1  # part of the key: a change of what is written must not take the old output for finished


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.add_argument("task", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.path("folder", "the task's published files", "FOLDER")
    vocabulary = "folder of the pretrained model's dict.txt and tokenizer, as luna-prepare-text made it"
    parser.path("--vocabulary", vocabulary, "DIR", required=True)
    parser.path("--destdir", "folder to write to", "DIR", required=True)
    parser.max_unknown()
    parser.workers()
    return parser


class TaskPreparation:
    """One run of the command. Raises InputError where there is no dictionary, or the tokenizer beside it
    belongs to another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.task = TASKS[args.task]
        path = args.vocabulary / DICTIONARY
        if not path.is_file():
            raise InputError(f"{path} does not exist: give the folder of the pretrained model's data")
        self.dictionary = Dictionary.load(str(path))
        self.encoder, self.tokenizer = _tokenizer(args.vocabulary, self.dictionary, args.workers)

    def run(self) -> None:
        """Read and check all splits, then encode and write them, and print their sizes."""
        steps = FinishedSteps(self.args.destdir, "prepare_task.json", ["input0", "label", DESCRIPTION])
        paths = [self.args.folder / name for name in self.task.splits.values()]
        published = (p for path in paths for p in (path, *path.rglob("*")) if p.is_file() and is_data(p.name))
        files = [*sorted(published), self.args.vocabulary / DICTIONARY, *self.tokenizer]
        key = digest(VERSION, self.task.name, stamps(files))
        steps.do("prepare", key, self._prepare, says=False)
        prepared = PreparedTask.load(self.args.destdir)
        for split, number in prepared.examples.items():
            answers = "" if split in prepared.labelled else ", without answers"
            print(f"{split}: {number:,} examples, the longest of {prepared.longest[split]} tokens{answers}")

    def _prepare(self) -> Tuple[List[str], Dict[str, Any]]:
        # All is read before anything is written: a bad line is found at once. Only training and the first
        # validation text must be there: reading them complains.
        examples = {
            split: self.task.read(self.args.folder, split)
            for split, name in self.task.splits.items()
            if split in ("train", "valid") or (self.args.folder / name).exists()
        }
        writer = PreparedWriter(self.args.destdir, self.task, self.dictionary)
        for split in examples:
            writer.write(split, examples[split], self.encoder)
            if writer.unknown[split]:
                print(f"{split}: {share_unknown(writer.unknown[split], writer.tokens[split])}")
        if self.tokenizer:  # of whole words many are unknown
            check_unknown(writer.unknown, writer.tokens, self.args.max_unknown)
        forget_checksums(self.args.destdir)
        names = writer.finish()
        for path in self.tokenizer:
            copy_file(path, self.args.destdir / path.name)
            names.append(path.name)
        return [*names, write_checksums(self.args.destdir, names)], {}


def _tokenizer(folder: Path, dictionary: Dictionary, workers: int) -> Tuple[Encoder, List[Path]]:
    """How the text is encoded, and the tokenizer's files in ``folder``, none where text is words."""
    options = find_tokenizer([folder])
    if not options:
        encoding = encoding_of(dictionary)
        if encoding is not None:
            raise InputError(
                f"{folder / DICTIONARY} holds pieces of {encoding}, and its tokenizer is not beside it: put "
                "sentencepiece.bpe.model (or GPT-2's encoder.json and vocab.bpe) there"
            )
        return words_encoder(), []
    check_tokenizer(encoders.build_bpe(argparse.Namespace(**options)), dictionary)
    make: Callable[..., Encoder] = gpt2_encoder if options["bpe"] == "gpt2" else foreign_sentencepiece_encoder
    files = [Path(path) for name, path in options.items() if name != "bpe"]
    return make(*files, workers), files


main = console_script(PROGRAM, build_parser, lambda args: TaskPreparation(args).run(), place="destdir")


if __name__ == "__main__":
    sys.exit(main())
