"""Output of fairseq-generate for pieces of documents, converted to one line for each sentence.

A piece is several sentences of a document that are translated together, joined by separator tokens.
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
from luna_fairseq.text.documents import SEPARATOR, Piece, remove_separators, split
from luna_fairseq.translation.generated import lines_by_kind


def find_misdivided(generated: Path, pieces: Sequence[Piece]) -> List[int]:
    """Return the numbers of the pieces whose hypothesis has another number of sentences than the piece.

    Args:
        generated: output of fairseq-generate for the pieces.
        pieces: sentences of each piece, in the order of the data.

    Raises:
        InputError: The output does not have exactly one hypothesis for each piece.
    """
    hypotheses = lines_by_kind(generated)["H"]
    if set(hypotheses) != set(range(len(pieces))):
        raise InputError(
            f"{generated} has {len(hypotheses):,} hypotheses for {len(pieces):,} pieces. "
            "Remove it and start the command again."
        )
    return [
        number for number, piece in enumerate(pieces) if split(hypotheses[number], piece.sentences) is None
    ]


def write_single_sentences(
    data: Path, subset: str, languages: Sequence[str], pieces: Sequence[int], folder: Path
) -> None:
    """Write the source sentences of some pieces one by one, as data that fairseq-generate reads.

    Args:
        data: folder of the binarised pieces.
        subset: name of the split, such as "test".
        languages: source and target language.
        pieces: numbers of the pieces whose sentences are written.
        folder: folder to write to. Whatever it holds is removed first.
    """
    source, target = languages
    shutil.rmtree(str(folder), ignore_errors=True)
    folder.mkdir(parents=True)
    for language in languages:
        shutil.copyfile(str(data / f"dict.{language}.txt"), str(folder / f"dict.{language}.txt"))
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


def write_sentences(generated: Path, pieces: Sequence[Piece], singly: Iterable[str], path: Path) -> None:
    """Write the output of fairseq-generate for pieces again, with the lines of their sentences.

    Args:
        generated: output of fairseq-generate for the pieces.
        pieces: sentences of each piece, in the order of the data.
        singly: translations of the sentences of the pieces that :func:`find_misdivided` returns, in order.
        path: file to write.
    """
    texts, remaining, lines = lines_by_kind(generated), iter(singly), []
    sentence = 0
    for number, piece in enumerate(pieces):
        sides: Dict[str, Any] = {kind: split(texts[kind].get(number, ""), piece.sentences) for kind in "STH"}
        for index in range(piece.sentences):
            lines += [f"{kind}-{sentence}\t{sides[kind][index]}" for kind in "ST" if sides[kind] is not None]
            hypothesis = next(remaining) if sides["H"] is None else sides["H"][index]
            # A sentence has no score of its own: fairseq scores whole pieces.
            lines.append(f"H-{sentence}\t-\t{remove_separators(hypothesis)}")
            sentence += 1
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_sizes(data: Path, subset: str, languages: Sequence[str], language: str) -> np.ndarray:
    """Return the length of each sentence or piece of a split in tokens, the end symbol included.

    Args:
        data: folder of the binarised data.
        subset: name of the split, such as "test".
        languages: source and target language.
        language: language of the side that is counted.

    Returns:
        Integers [N]. N is 0 if the data does not have this side.
    """
    path = str(data / f"{subset}.{'-'.join(languages)}.{language}")
    if not indexed_dataset.dataset_exists(path, "mmap"):
        return np.zeros(0, dtype=np.int64)
    dataset = indexed_dataset.MMapIndexedDataset(path)
    return np.array(dataset.sizes)  # a copy, because the sizes are part of a memory-mapped file
