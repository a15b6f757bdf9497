"""Conversion of fairseq-generate's output for documents to one line per sentence.

Documents are translated in pieces. A document piece consists of consecutive sentences, joined by ``<sep>``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

import numpy as np
import torch

from fairseq.data import Dictionary, data_utils, indexed_dataset
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.documents import SEPARATOR, DocumentPiece, remove_separators, split_sentences
from luna_fairseq.translation.generated import lines_by_kind


def find_mismatched_pieces(generated: Path, pieces: Sequence[DocumentPiece]) -> List[int]:
    """Return the indices of the pieces whose translation has too few, too many or empty sentences.

    ``generated`` is the output file of fairseq-generate for ``pieces``, which are parts of documents.
    """
    hypotheses = lines_by_kind(generated)["H"]
    if set(hypotheses) != set(range(len(pieces))):
        raise InputError(
            f"{generated} has {len(hypotheses):,} hypotheses for {len(pieces):,} pieces. "
            "Remove it and start the command again."
        )
    return [
        number
        for number, piece in enumerate(pieces)
        if split_sentences(hypotheses[number], piece.sentences) is None
    ]


def write_single_sentences(
    data: Path, subset: str, languages: Sequence[str], pieces: Sequence[int], folder: Path
) -> None:
    """Write each source sentence of some document pieces as a separate example to the data folder ``folder``.

    ``pieces`` holds the indices of the document pieces in the split ``subset`` of the folder ``data``.
    ``languages`` are the source and the target language.
    """
    source, target = languages
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    for path in data.glob("dict*.txt"):  # a language model of --lm-path reads dict.txt
        shutil.copyfile(str(path), str(folder / path.name))
    dictionary = Dictionary.load(str(data / f"dict.{source}.txt"))
    name = f"{subset}.{source}-{target}.{source}"
    text = data_utils.load_indexed_dataset(str(data / name), dictionary)
    builder = indexed_dataset.make_builder(str(folder / f"{name}.bin"), "mmap", vocab_size=len(dictionary))
    end = torch.tensor([dictionary.eos()])
    for number in pieces:
        tokens = text[number].long()[:-1]
        places = [-1, *tokens.eq(dictionary.index(SEPARATOR)).nonzero().flatten().tolist(), len(tokens)]
        for before, after in zip(places, places[1:]):
            builder.add_item(torch.cat([tokens[before + 1 : after], end]))
    builder.finalize(str(folder / f"{name}.idx"))


def write_sentences(
    generated: Path, pieces: Sequence[DocumentPiece], retranslated: Iterable[str], path: Path
) -> None:
    """Write fairseq-generate's output for document pieces to ``path``, with one hypothesis per sentence.

    The ``S-``, ``T-`` and ``H-`` lines are numbered by sentence. ``retranslated`` holds the single-sentence
    translations of the pieces that :func:`find_mismatched_pieces` returns.
    """
    texts, remaining, lines = lines_by_kind(generated), iter(retranslated), []
    sentence = 0
    for number, piece in enumerate(pieces):
        sides: Dict[str, Any] = {
            kind: split_sentences(texts[kind].get(number, ""), piece.sentences) for kind in "STH"
        }
        for index in range(piece.sentences):
            lines += [f"{kind}-{sentence}\t{sides[kind][index]}" for kind in "ST" if sides[kind] is not None]
            hypothesis = next(remaining) if sides["H"] is None else sides["H"][index]
            # A sentence has no score of its own: fairseq scores whole pieces.
            lines.append(f"H-{sentence}\t-\t{remove_separators(hypothesis)}")
            sentence += 1
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_sizes(data: Path, subset: str, languages: Sequence[str], language: str) -> np.ndarray:
    """Return the lengths [N] of a split's N examples in one language, in tokens with end of sentence.

    The array is empty if the split has no text in this ``language``. ``languages`` are the source and the
    target language.
    """
    path = str(data / f"{subset}.{'-'.join(languages)}.{language}")
    if not indexed_dataset.dataset_exists(path, "mmap"):
        return np.zeros(0, dtype=np.int64)
    dataset = indexed_dataset.MMapIndexedDataset(path)
    return np.array(dataset.sizes)  # a copy, because the sizes are part of a memory-mapped file
