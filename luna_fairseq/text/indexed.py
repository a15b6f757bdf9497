"""Encoded text on disk: scratch files of piece numbers, and fairseq's indexed format.

The dictionary is known only after the whole training text has been encoded. Until then, pieces are stored
under the numbers that the encoder gives them.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Dict, Hashable, Iterator, List, Sequence, Tuple, TypeVar

import numpy as np

from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype, dataset_exists
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import replacing, scratch_folder

# Piece numbers [N] of B sentences, concatenated, and the length of each sentence [B].
Encoded = Tuple[np.ndarray, np.ndarray]
Name = TypeVar("Name", bound=Hashable)
SENTENCES = 1 << 16  # number of sentences that are in memory at a time


class EncodedText:
    """Encoded sentences in two scratch files, whose memory use does not grow with the text.

    Args:
        path: path of the scratch files, without their extensions.

    Attributes:
        counts: number of occurrences of each piece, an array of the size of the dictionary.
        longest: number of pieces of the longest sentence.
    """

    def __init__(self, path: Path) -> None:
        self._ids, self._sizes = (Path(f"{path}.{end}").open("w+b") for end in ("ids", "sizes"))
        self.counts = np.zeros(0, dtype=np.int64)
        self.longest = 0

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sentences.

        Args:
            ids: concatenated piece numbers [N] of all sentences.
            lengths: number [B] of pieces of each sentence.
        """
        counts = np.bincount(ids, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        ids.astype(np.int32, copy=False).tofile(self._ids)
        lengths.astype(np.int32, copy=False).tofile(self._sizes)

    @property
    def tokens(self) -> int:
        """Number of all pieces."""
        return int(self.counts.sum())

    def unknown(self, table: np.ndarray, dictionary: Dictionary) -> int:
        """Count the tokens that are unknown to a dictionary.

        Args:
            table: dictionary index of each piece number.
            dictionary: the dictionary.

        Returns:
            Number of unknown tokens.
        """
        return int(self.counts[table[: len(self.counts)] == dictionary.unk()].sum())

    def write(self, prefix: Path, table: np.ndarray, dictionary: Dictionary) -> None:
        """Write ``PREFIX.bin`` and ``PREFIX.idx``, bit for bit as fairseq-preprocess does.

        Args:
            prefix: path of the files without their extensions.
            table: dictionary index of each piece number.
            dictionary: the dictionary, whose end-of-sentence symbol follows each sentence.
        """
        dtype = best_fitting_int_dtype(len(dictionary))
        table = table.astype(dtype)
        with replacing(Path(f"{prefix}.bin")) as binary, replacing(Path(f"{prefix}.idx")) as index:
            with binary.open("wb") as file:
                for ids, lengths in self._read_sentences():
                    np.insert(table[ids], np.cumsum(lengths), dictionary.eos()).tofile(file)
            with MMapIndexedDataset.Index.writer(str(index), dtype) as writer:
                self._write_index(writer._file, dtype)

    def _write_index(self, file: IO[bytes], dtype: Any) -> None:
        """Write the index after its header, in parts. fairseq's own writer needs all lengths in memory.

        Args:
            file: open index file, positioned after the header.
            dtype: type of the dictionary indices.
        """
        file.write(struct.pack("<Q", self._sizes.seek(0, 2) // np.dtype(np.int32).itemsize))
        for lengths in self._read_lengths():
            (lengths + 1).astype(np.int32).tofile(file)
        start = 0
        for lengths in self._read_lengths():
            ends = start + np.cumsum((lengths + 1).astype(np.int64)) * np.dtype(dtype).itemsize
            np.concatenate([[start], ends[:-1]]).astype(np.int64).tofile(file)
            start = int(ends[-1])

    def _read_lengths(self) -> Iterator[np.ndarray]:
        """Yield the sentence lengths in batches."""
        self._sizes.seek(0)
        while True:
            lengths = np.fromfile(self._sizes, dtype=np.int32, count=SENTENCES)
            if not len(lengths):
                return
            yield lengths

    def _read_sentences(self) -> Iterator[Encoded]:
        """Yield the sentences in batches."""
        self._ids.seek(0)
        for lengths in self._read_lengths():
            yield np.fromfile(self._ids, dtype=np.int32, count=int(lengths.sum())), lengths

    def close(self) -> None:
        """Close the scratch files. The folder of :func:`encoded_texts` removes them."""
        self._ids.close()
        self._sizes.close()


@contextmanager
def encoded_texts(folder: Path, names: Sequence[Name]) -> Iterator[Dict[Name, EncodedText]]:
    """Context manager that creates empty texts and removes their scratch files at the end.

    Args:
        folder: folder of the scratch files, which is created and removed.
        names: names of the texts.

    Yields:
        An :class:`EncodedText` for each name.
    """
    with scratch_folder(folder), ExitStack() as stack:
        texts = {name: EncodedText(folder / str(number)) for number, name in enumerate(names)}
        for text in texts.values():
            stack.callback(text.close)
        yield texts


def read_indexed(path: Path, dictionary: Dictionary, combine: bool) -> Any:
    """Load a split in fairseq's indexed format.

    Args:
        path: path of the split without extensions, such as ``data-bin/train``.
        dictionary: dictionary of the split.
        combine: also load the numbered files of the split, such as ``train1``.

    Returns:
        fairseq's dataset.

    Raises:
        InputError: The split does not exist.
    """
    if not dataset_exists(str(path), impl=None):
        raise InputError(
            f"{path}.bin and {path}.idx do not exist. Prepare the split {path.name!r}, or name another split."
        )
    return data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)


def select_sentences(encoded: Encoded, mask: np.ndarray) -> Encoded:
    """Select sentences by a boolean mask.

    Args:
        encoded: piece numbers [N] and sentence lengths [B].
        mask: mask [B], True for the sentences to keep.

    Returns:
        Piece numbers and lengths of the selected sentences.

    Example:
        >>> select_sentences((np.array([5, 6, 7]), np.array([2, 1])), np.array([False, True]))
        (array([7]), array([1]))
    """
    ids, lengths = encoded
    return ids[np.repeat(mask, lengths)], lengths[mask]


def flatten_sentences(sentences: List[List[int]]) -> Encoded:
    """Convert lists of piece numbers to two arrays.

    Args:
        sentences: piece numbers of each sentence.

    Returns:
        Piece numbers [N] of all sentences, concatenated, and sentence lengths [B].

    Example:
        >>> flatten_sentences([[5, 6], [7]])
        (array([5, 6, 7], dtype=int32), array([2, 1], dtype=int32))
    """
    lengths = np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype=np.int32, count=int(lengths.sum())), lengths
