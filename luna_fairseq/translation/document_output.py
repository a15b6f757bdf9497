"""What fairseq-generate makes of pieces of documents, as a line for each sentence."""

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


def misdivided(generated: Path, pieces: Sequence[Piece]) -> List[int]:
    """Numbers of the pieces whose hypothesis has another number of sentences. Raises InputError where there
    is not a hypothesis for each piece."""
    found = lines_by_kind(generated)["H"]
    if set(found) != set(range(len(pieces))):
        raise InputError(f"{generated} has {len(found):,} hypotheses for {len(pieces):,} pieces: remove it")
    return [number for number, piece in enumerate(pieces) if split(found[number], piece.sentences) is None]


def write_singly(
    data: Path, subset: str, languages: Sequence[str], pieces: Sequence[int], folder: Path
) -> None:
    """Write the source sentences of ``pieces`` to ``folder``, each by itself, for fairseq-generate."""
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
    """Write what fairseq-generate would have printed of the sentences of ``pieces``.

    Args:
        generated: what it printed of the pieces.
        pieces: which sentences each holds.
        singly: translations of the sentences of those that have another number of them, in their order.
        path: to write to.
    """
    found, again, lines = lines_by_kind(generated), iter(singly), []
    sentence = 0
    for number, piece in enumerate(pieces):
        sides: Dict[str, Any] = {kind: split(found[kind].get(number, ""), piece.sentences) for kind in "STH"}
        for place in range(piece.sentences):
            lines += [f"{kind}-{sentence}\t{sides[kind][place]}" for kind in "ST" if sides[kind] is not None]
            hypothesis = next(again) if sides["H"] is None else sides["H"][place]
            # fairseq scores a piece, not its sentences.
            lines.append(f"H-{sentence}\t-\t{remove_separators(hypothesis)}")
            sentence += 1
    write_text(path, "".join(f"{line}\n" for line in lines))


def sizes(data: Path, subset: str, languages: Sequence[str], language: str) -> np.ndarray:
    """Tokens of each sentence or piece that fairseq-generate will read, its end counted; of a missing side,
    none."""
    path = str(data / f"{subset}.{'-'.join(languages)}.{language}")
    if not indexed_dataset.dataset_exists(path, "mmap"):
        return np.zeros(0, dtype=np.int64)
    dataset = indexed_dataset.MMapIndexedDataset(path)
    return np.array(dataset.sizes)  # they are the file's, which is closed with it
