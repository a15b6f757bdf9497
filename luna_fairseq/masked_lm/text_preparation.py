"""Conversion of raw text into training data for language models (``luna-prepare-text``)."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import sentencepiece

from fairseq.data import Dictionary
from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CHECKSUMS, digest, remove_checksums, sha256, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.regular import require_regular_file
from luna_fairseq.files.writing import copy_file, replacing
from luna_fairseq.masked_lm.prepare_text import TextOptions
from luna_fairseq.progress import progress
from luna_fairseq.text.bitext import read_lines
from luna_fairseq.text.dictionaries import build_dictionary
from luna_fairseq.text.encoders import (
    Encoder,
    check_unknown,
    count_pieces,
    gpt2_encoder,
    gpt2_symbols,
    print_unknown,
    sentencepiece_encoder,
    write_texts,
)
from luna_fairseq.text.indexed import EncodedText, encoded_texts, select_sentences
from luna_fairseq.text.joint_bpe import bpe_dictionary, learn_bpe
from luna_fairseq.text.pieces import SENTENCEPIECE_MODEL

DICTIONARY = "dict.txt"
# Value of --tokens-per-sample in the presets. With --sample-break-mode complete, the model cannot read longer
# lines.
SAMPLE = 512
SKIP = "--skip-invalid-size-inputs-valid-test"
# Part of the text: split name and output folder.
Part = Tuple[str, str]
# Version of the steps' output. Increase it when the output of a step changes, so that the steps run again.
VERSION = 4


class TextPreparation:
    """Conversion of raw text to fairseq's binary files, which does not repeat finished steps."""

    def __init__(self, options: TextOptions) -> None:
        self.gpt2 = [path for path in (options.gpt2_encoder_json, options.gpt2_vocab_bpe) if path is not None]
        if len(self.gpt2) == 1:
            raise InputError("GPT-2's encoding has two files. Give --gpt2-encoder-json and --gpt2-vocab-bpe.")
        if bool(self.gpt2) == bool(options.vocab_size):
            given = "both" if self.gpt2 else "neither"
            raise InputError(
                "expected either --vocab-size N, to learn an encoding, or the files of GPT-2's encoding "
                f"(--gpt2-encoder-json and --gpt2-vocab-bpe), got {given}"
            )
        self.options = options
        parts = {"train": options.train, "valid": options.valid, "test": options.test}
        self.files = {split: [path.absolute() for path in paths] for split, paths in parts.items() if paths}
        self.tokenizer = ["encoder.json", "vocab.bpe"] if self.gpt2 else [SENTENCEPIECE_MODEL]
        shards = [f"shard{n}" for n in range(options.shards)] if options.shards > 1 else ["."]
        # Validation and test text are written to the first shard, where fairseq looks for them.
        self.parts: List[Part] = [("train", shard) for shard in shards]
        self.parts += [(split, shards[0]) for split in self.files if split != "train"]
        self.binarised = [
            str(Path(folder) / f"{split}.{end}") for split, folder in self.parts for end in ("bin", "idx")
        ]

    def run(self) -> None:
        """Run the unfinished steps, and print the numbers of lines and tokens in each split."""
        input_files = [*self.gpt2, *([self.options.dict] if self.options.dict else [])]
        for path in input_files:
            require_regular_file(path)
        given_dictionary = self._load_given_dictionary()
        checked = {split: self._check_text(split) for split in self.files}
        owned = [*self.tokenizer, DICTIONARY, *self.binarised, CHECKSUMS]
        steps = FinishedSteps(self.options.destdir, "prepare_text.json", owned)
        files = {str(path): sha256(path) for path in input_files}
        training = checked["train"][1]
        key = digest(VERSION, training, self.options.vocab_size, files, sentencepiece.__version__)
        steps.do("tokenizer", key, self._make_tokenizer)
        key = digest(key, checked, self.options.shards)
        counts = steps.do("encode", key, lambda: self._encode(given_dictionary))
        check_unknown(counts["unknown"], counts["tokens"], self.options.max_unknown)
        for split, (lines, _) in checked.items():
            print(f"{split}: {lines:,} lines, {counts['tokens'][split]:,} tokens")
            print_unknown(split, counts)
            if counts["long"][split]:
                does = "skips these lines" if split == "train" else f"stops at these lines without {SKIP}"
                print(
                    f"{split}: {counts['long'][split]:,} lines have {SAMPLE - 1} pieces or more. With "
                    f"--sample-break-mode complete and --tokens-per-sample {SAMPLE}, as in the presets, "
                    f"fairseq {does}. Split them, or use --sample-break-mode none."
                )
        data = os.pathsep.join(dict.fromkeys(str(self.options.destdir / folder) for _, folder in self.parts))
        print(f"dictionary: {counts['dictionary']:,} entries; data for fairseq-train: {data}")

    def _check_text(self, split: str) -> Tuple[int, str]:
        """Return the number of nonempty lines in a split, and the SHA-256 of its text.

        Raises InputError if there is no text, or if the training text has fewer documents than shards.
        """
        state, lines, documents, inside = hashlib.sha256(), 0, 0, False
        controls: Counter = Counter()
        for line in progress(self._read_lines(split, controls), f"check {split}"):
            state.update(line.encode("utf-8") + b"\n")
            lines += bool(line)
            documents += bool(line) and not inside
            inside = bool(line)
        if not lines:
            raise InputError(
                f"there is no text in {', '.join(map(str, self.files[split]))}. Give files with text."
            )
        if split == "train" and documents < self.options.shards:
            raise InputError(
                f"--shards {self.options.shards} exceeds the {documents:,} documents of the training text, "
                "which are separated by empty lines. Give fewer shards."
            )
        for path, number in controls.items():
            print(f"{split}: control characters or U+2581 in {number:,} lines of {path} were read as spaces")
        return lines, state.hexdigest()

    def _read_lines(self, split: str, controls: Optional[Counter] = None) -> Iterator[str]:
        """Yield the lines of all files of a split. An empty line between two files separates their documents.

        ``controls``, if given, counts the lines with control characters by path, and is updated in place.
        """
        for number, path in enumerate(self.files[split]):
            if number:
                yield ""
            yield from read_lines(path, control_counts=controls)

    def _make_tokenizer(self) -> Tuple[List[str], Dict[str, Any]]:
        """Copy GPT-2's files, or learn a sentencepiece model. Return the file names and empty results."""
        if self.options.vocab_size is None:
            gpt2_symbols(self.gpt2[0])
            for source, name in zip(self.gpt2, self.tokenizer):
                copy_file(source, self.options.destdir / name)
        else:
            model = learn_bpe(progress(self._read_lines("train"), "learn"), self.options.vocab_size)
            with replacing(self.options.destdir / self.tokenizer[0]) as temporary:
                temporary.write_bytes(model)
        return self.tokenizer, {}

    def _encode(self, given_dictionary: Optional[Dictionary]) -> Tuple[List[str], Dict[str, Any]]:
        """Encode all text to fairseq's files, and write the dictionary. Return file names and counts.

        If ``given_dictionary`` is None, a dictionary is built from the training text.
        """
        destdir = self.options.destdir
        remove_checksums(destdir)
        file = destdir.absolute() / self.tokenizer[0]
        if self.gpt2:
            encoder = gpt2_encoder(file, file.with_name(self.tokenizer[1]), self.options.workers)
        else:
            encoder = sentencepiece_encoder(file)
        with encoded_texts(destdir / "encode.tmp", self.parts) as texts:
            long = {split: self._encode_split(split, encoder, texts) for split in self.files}
            training = [text for (split, _), text in texts.items() if split == "train"]
            dictionary = given_dictionary or self._build_dictionary(file, count_pieces(encoder, training))
            named = [
                (split, text, destdir / folder / split, dictionary) for (split, folder), text in texts.items()
            ]
            folders = (".", *(folder for _, folder in self.parts))
            dictionaries = sorted({str(Path(folder) / DICTIONARY) for folder in folders})
            files = {destdir / name: dictionary for name in dictionaries}
            counts = write_texts(named, files, encoder, self.options.max_unknown)
        names = [*self.binarised, *dictionaries]
        names.append(write_checksums(destdir, [*names, *self.tokenizer]))
        return names, {**counts, "long": long, "dictionary": len(dictionary)}

    def _encode_split(self, split: str, encoder: Encoder, texts: Mapping[Part, EncodedText]) -> int:
        """Encode a split, and distribute its documents over the shards in turn.

        The encoded lines are added to ``texts`` in place. Return the number of lines that exceed the presets'
        maximum of 512 tokens, including <s> and </s>.
        """
        parts = [text for (name, _), text in texts.items() if name == split]
        documents, inside, long = 0, False, 0
        for batch in encoder.encode(progress(self._read_lines(split), f"encode {split}")):
            text = batch[1] > 0
            begins = text & ~np.append(inside, text[:-1])
            document = documents + np.cumsum(begins)
            documents, inside = int(document[-1]), bool(text[-1])
            long += int((batch[1] >= SAMPLE - 1).sum())  # a sample also contains <s> and </s>
            for number, part in enumerate(parts):
                part.add(*select_sentences(batch, (document - 1) % len(parts) == number))
        return long

    def _load_given_dictionary(self) -> Optional[Dictionary]:
        """Load the dictionary given with ``--dict``. Return None without this option."""
        if not self.options.dict:
            return None
        try:
            return Dictionary.load(str(self.options.dict))
        except ValueError as error:
            raise InputError(
                f"{self.options.dict} is not a dictionary of fairseq ({error}). Give a dict.txt that "
                "fairseq-preprocess or luna-prepare-text wrote."
            ) from error

    def _build_dictionary(self, tokenizer: Path, counts: Mapping[str, int]) -> Dictionary:
        """Build a dictionary of all subwords of the tokenizer, sorted by their frequency in ``counts``."""
        if self.gpt2:
            return build_dictionary(gpt2_symbols(tokenizer), counts)
        return bpe_dictionary(tokenizer, counts)
