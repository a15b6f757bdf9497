"""Preparation of parallel text: check, tokenize, learn subwords and binarize (``luna-prepare-bitext``)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.checksums import CHECKSUMS, CONTENT, digest, remove_checksums, write_checksums
from luna_fairseq.files.finished_steps import FinishedSteps
from luna_fairseq.files.same_run import differences
from luna_fairseq.files.writing import replacing, replacing_lines
from luna_fairseq.progress import progress
from luna_fairseq.text.batches import map_batches
from luna_fairseq.text.bitext import Bitext, check_bitext, read_lines
from luna_fairseq.text.documents import (
    IDS,
    SEPARATOR,
    DocumentPiece,
    document_lengths,
    split_into_pieces,
    write_pieces,
)
from luna_fairseq.text.encoders import LINES, Encoder, check_unknown, print_unknown
from luna_fairseq.text.indexed import Encoded, select_sentences
from luna_fairseq.text.length_filter import LengthFilter
from luna_fairseq.text.subword import SUBWORD_METHODS
from luna_fairseq.translation.languages import check_language
from luna_fairseq.translation.pair_data import PairData
from luna_fairseq.translation.prepare_bitext import BitextOptions

# Part of every key. Increase it when the output of a step changes, so that old output counts as unfinished.
VERSION = 7
# Options on which the trained model depends.
DECISIVE_OPTIONS = (
    "source_lang",
    "target_lang",
    "vocab_size",
    "subword",
    "max_length",
    "max_ratio",
    "documents",
)
# Positions of the presets (--max-source-positions, --max-target-positions), one of them for the end symbol.
POSITIONS = 1024
SKIP = "--skip-invalid-size-inputs-valid-test"


class Preparation:
    """Preparation of parallel text for fairseq in steps: tokenize, learn subwords, binarize.

    Steps that an earlier run has finished are skipped.

    Args:
        options: paths of the text, and options of its tokenization and encoding.
        method: subword method from :mod:`luna_fairseq.text.subword`, or None to use ``options.subword``.

    Attributes:
        data: writer of the data folder. ``data.path`` is the data argument of fairseq-train.
        longest: number of tokens in the longest line of each text, such as "train.en". Set by :meth:`run`.
    """

    def __init__(self, options: BitextOptions, method: Any = None) -> None:
        for option, language in (("-s", options.source_lang), ("-t", options.target_lang)):
            check_language(option, language)
        if options.source_lang == options.target_lang:
            raise InputError(
                f"--source-lang and --target-lang are both {options.source_lang}. Give two languages."
            )
        self.options = options
        self.method: Any = method or SUBWORD_METHODS[options.subword]
        self.models = list(filter(None, [self.method.model_file]))
        self.model = options.destdir / self.method.model_file
        self.languages = (options.source_lang, options.target_lang)
        self.text: Dict[str, Bitext] = {}
        self.documents: Dict[str, List[int]] = {}
        self.pieces: Dict[str, List[DocumentPiece]] = {}
        self.prefixes = {"train": options.trainpref}
        for split, prefixes in (("valid", options.validpref), ("test", options.testpref)):
            for number, prefix in enumerate(prefixes.split(",") if prefixes else ()):
                self.prefixes[f"{split}{number or ''}"] = prefix
        # Folders of DIR that text is written to.
        self.text_folders = ["plain", *(["tokenised"] if self.method.tokenize else [])]
        self._check_inputs_are_not_outputs()
        lengths = LengthFilter(options.max_length, options.max_ratio)
        self.data = PairData(options.destdir, self.languages, self.prefixes, lengths, options.shards)

    def _check_inputs_are_not_outputs(self) -> None:
        """Raise InputError if a text is in a folder to which :meth:`run` writes text."""
        outputs = [(self.options.destdir / folder).resolve() for folder in self.text_folders]
        for prefix in self.prefixes.values():
            for ending in (*self.languages, IDS):
                path = Path(f"{prefix}.{ending}")
                if path.resolve().parent in outputs:
                    raise InputError(
                        f"{path} would be overwritten, because the command writes text to the folder "
                        f"{path.parent}. Use another --destdir."
                    )

    def check(self) -> None:
        """Read and check all text, and set ``self.text`` for :meth:`run`.

        Raise InputError if the two languages are not aligned.
        """
        has_documents = self.options.documents is not None  # then empty lines may divide documents
        for split, prefix in self.prefixes.items():
            by_lines = has_documents and not Path(f"{prefix}.{IDS}").is_file()
            may_be_empty = has_documents or split == "train"
            self.text[split] = check_bitext(prefix, *self.languages, may_be_empty, by_lines)
            if has_documents:
                self.documents[split] = document_lengths(prefix, self.text[split])

    def resume_settings(self) -> Dict[str, str]:
        """Return the settings that a resumed run must match, keyed by name.

        The settings are the checksum of the training text, and the options that affect the result.
        """
        identity = {"training text": f"{CONTENT}{self.text['train'].digest}"}
        for name in DECISIVE_OPTIONS:
            if getattr(self.options, name) is not None:
                identity[f"--{name.replace('_', '-')}"] = str(getattr(self.options, name))
        if self.options.shards > 1:  # records of runs without shards do not name the option
            identity["--shards"] = str(self.options.shards)
        return identity

    def _origin(self) -> Dict[str, str]:
        """Return what the encoded training text depends on beside :meth:`resume_settings`, keyed by name."""
        origin = dict(zip(self.method.packages, self.method.versions))
        origin["preparation"] = f"version {VERSION}"
        if self.documents:
            origin["documents of the training text"] = f"{CONTENT}{digest(self.documents['train'])}"
        return origin

    def run(self, is_trained: bool = False) -> None:
        """Run the steps that are not finished yet, and print the size of each text.

        With ``is_trained``, a model has been trained on the data. Raise InputError if they may change.
        """
        if not self.text:
            self.check()
        texts = [
            f"{folder}/{split}.{language}"
            for folder in self.text_folders
            for split in self.prefixes
            for language in self.languages
        ]
        owned = [*self.models, *self.data.names(), *texts, CHECKSUMS]
        steps = FinishedSteps(self.options.destdir, "prepare_bitext.json", owned)
        origin = self._origin()
        recorded = steps.results("encode").get("origin", origin)  # older records lack it
        changes = differences(recorded, origin) if is_trained else []
        if changes:
            folder = self.options.destdir
            raise InputError(
                f"{folder} has the data of a trained model, made from other text or by other versions "
                f"({'; '.join(changes)}). Use the same, use another --destdir, or remove {folder} to prepare "
                "the data again."
            )
        digests = {split: part.digest for split, part in self.text.items()}
        key = digest(VERSION, self.method.name, self.method.versions, self.languages)
        if self.method.tokenize:
            steps.do("tokenise", digest(key, digests), self._tokenise)
        key = digest(key, digests["train"], self.options.vocab_size)
        if self.models:
            steps.do("learn", key, self._learn)
        key = digest(key, digests, self.options.max_length, self.options.max_ratio)
        if self.documents:
            key = digest(key, self.options.documents, self.documents)
        counts = steps.do("encode", digest(key, self.options.shards), self._encode)
        check_unknown(counts["unknown"], counts["tokens"], self.options.max_unknown)
        self.longest = counts["longest"]
        self._report(counts)

    def _report(self, counts: Dict[str, Any]) -> None:
        """Print the sizes of texts and dictionary from ``counts``, and warn of long or unusual lines."""
        for split, part in self.text.items():
            sides = [f"{split}.{language}" for language in self.languages]
            tokens = ", ".join(
                f"{counts['tokens'][side]:,} {language}" for side, language in zip(sides, self.languages)
            )
            reasons = Counter(counts["dropped"]) if split == "train" else Counter()
            dropped = "".join(f", {number:,} dropped ({reason})" for reason, number in reasons.items())
            if self.documents:
                documents, pieces = self.documents[split], counts["pieces"][split]
                found = f"{sum(documents):,} sentences of {len(documents):,} documents in {pieces:,} pieces"
            else:
                found = f"{part.lines - part.empty - sum(reasons.values()):,} pairs"
                dropped += f", {part.empty:,} dropped (an empty side)" if part.empty else ""
            print(f"{split}: {found}, tokens: {tokens}{dropped}")
            if part.control_lines:
                lines = f"{part.control_lines:,} lines"
                print(f"{split}: control characters or U+2581 in {lines} were read as spaces")
            for side in sides:
                print_unknown(side, counts)
            longest = max(self.longest[side] for side in sides)
            if longest >= POSITIONS:
                training = split == "train"
                print(
                    f"{split}: the longest side has {longest:,} pieces, and the presets read {POSITIONS:,} "
                    f"with the end symbol. fairseq {'skips it' if training else 'refuses the text'} unless "
                    "--max-source-positions, --max-target-positions and, if given, --max-tokens are "
                    f"{longest + 1} or more"
                    f"{' (--max-length drops such pairs here)' if training else ''}."
                )
        entries = counts["dictionary"]
        sizes = [f"{entries[language]:,} {language}" for language in self.languages]
        if self.method.is_joint:
            sizes = [f"{entries[self.languages[0]]:,}"]
        print(f"dictionary: {', '.join(sizes)} entries; data for fairseq-train: {self.data.path}")
        if any(mark in language for mark in "-." for language in self.languages):
            print(f"give fairseq-train -s {self.languages[0]} -t {self.languages[1]}, which it cannot infer")
        if "valid1" in self.text:
            named = ",".join(split for split in self.text if split.startswith("valid"))
            print(
                f"several validation texts: give fairseq-train the options --valid-subset {named} "
                "--ignore-unused-valid-subsets"
            )

    def check_positions(self, options: Mapping[str, str]) -> None:
        """Raise InputError if a line is longer than the model's maximum sequence length or than a batch.

        ``options`` are the fairseq-train options and their values. fairseq skips training lines beyond the
        maximum length. For all other lines, fairseq would fail, perhaps only after training.
        """
        shorten = "Split the line or give a smaller --documents" if self.documents else "Split the line"
        for split in self.text:
            tokens, larger_batch = options.get("--max-tokens"), "--max-tokens {0} --update-freq 1"
            if split.startswith("valid"):
                tokens, larger_batch = options.get("--max-tokens-valid", tokens), "--max-tokens-valid {0}"
            elif split != "train":
                tokens = None  # luna-evaluate makes the batches of a test text as large as necessary
            is_skipped = split == "train" or (split.startswith("valid") and SKIP in options)
            for side, language in zip(("source", "target"), self.languages):
                positions = int(options.get(f"--max-{side}-positions", POSITIONS))
                longest = self.longest[f"{split}.{language}"]
                if longest >= positions and is_skipped:
                    continue
                limits, advice = [], []
                if longest >= positions:
                    limits.append(f"the model reads {positions:,}")
                    advice.append("--max-source-positions {0} --max-target-positions {0}")
                if tokens is not None and longest >= int(tokens):
                    limits.append(f"a batch holds {int(tokens):,}")
                    advice.append(larger_batch)
                if limits:
                    raise InputError(
                        f"{self.prefixes[split]}.{language} has a line of {longest:,} pieces, and "
                        f"{' and '.join(limits)} with the end symbol. {shorten}, or train with -- "
                        f"{' '.join(advice).format(longest + 1)}."
                    )

    def _tokenise(self) -> Tuple[List[str], Dict[str, Any]]:
        """Tokenize all splits to the folder ``tokenised``. Return the file names and an empty dictionary."""
        names, tokenize = [], partial(self.method.tokenize, self.languages)
        for split, part in self.text.items():
            pairs = progress(part.pairs(), f"tokenise {split}")
            names += self._write("tokenised", split, map_batches(tokenize, pairs, self.options.workers))
        return names, {}

    def _pairs(self, split: str, description: str) -> Iterator[Tuple[str, str]]:
        """Yield the sentence pairs of a split, tokenized if the method needs it, and show a progress bar."""
        if not self.method.tokenize:
            return progress(self.text[split].pairs(), description)
        paths = [self.options.destdir / "tokenised" / f"{split}.{language}" for language in self.languages]
        return progress(zip(*map(read_lines, paths)), description)

    def _learn(self) -> Tuple[List[str], Dict[str, Any]]:
        """Learn the subword model and write it to a file. Return the file name and an empty dictionary."""
        lines = chain.from_iterable(self._pairs("train", "learn"))
        model = self.method.learn(lines, self.options.vocab_size)
        with replacing(self.model) as temporary:
            temporary.write_bytes(model)
        return self.models, {}

    def _encode(self) -> Tuple[List[str], Dict[str, Any]]:
        """Encode all splits. Write the data folder, checksums, and the validation and test text unencoded.

        Return the paths of the written files, relative to the data folder, and the counts of
        :meth:`PairData.write` together with ``pieces``, the number of document pieces in each split, and
        ``origin``, the result of :meth:`_origin`.
        """
        remove_checksums(self.options.destdir)
        separators = [SEPARATOR] if self.documents else []
        counts = self.data.write(self.method, self.model, self._batches, separators, self.options.max_unknown)
        names = self.data.names()
        for split in self.prefixes:
            if split != "train":
                names += self._write("plain", split, self.text[split].pairs())
        for split, pieces in self.pieces.items():
            if split != "train":
                names.append(f"plain/{split}.pieces")
                write_pieces(self.options.destdir / names[-1], pieces)
        names.append(write_checksums(self.options.destdir, [*names, *self.models]))
        counts["pieces"] = {split: len(pieces) for split, pieces in self.pieces.items()}
        counts["origin"] = self._origin()
        return names, counts

    def _batches(self, split: str, encoder: Encoder) -> Iterator[List[Encoded]]:
        """Encode a split, and yield batches of sentence pairs as lists [encoded source, encoded target].

        With the option ``documents``, a pair consists of document pieces: sentences joined with a separator.
        """
        lines = chain.from_iterable(self._pairs(split, f"encode {split}"))
        sentences = (
            [select_sentences(batch, np.arange(len(batch[1])) % 2 == side) for side in (0, 1)]
            for batch in encoder.encode(lines)
        )
        if self.options.documents is None:
            yield from sentences
            return
        self.pieces[split] = []
        limit, separator, training = self.options.documents, encoder.add(SEPARATOR), split == "train"
        joined = split_into_pieces(sentences, self.documents[split], limit, separator, training)
        for batch in iter(lambda: list(islice(joined, LINES)), []):
            self.pieces[split] += [piece for piece, _ in batch if piece is not None]
            sides = zip(*(numbers for _, numbers in batch))
            yield [(np.concatenate(side), np.array(list(map(len, side)))) for side in sides]

    def _write(self, folder: str, split: str, pairs: Iterable[Sequence[str]]) -> List[str]:
        """Write pairs of lines to one file per language, ``FOLDER/SPLIT.LANG``. Return the two file names."""
        names = [f"{folder}/{split}.{language}" for language in self.languages]
        with replacing_lines([self.options.destdir / name for name in names]) as files:
            for pair in pairs:
                for file, line in zip(files, pair):
                    file.write(line + "\n")
        return names
