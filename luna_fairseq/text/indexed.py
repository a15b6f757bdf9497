"""Store encoded text on disk, first in scratch files and then in fairseq's indexed format.

The dictionary is known only after the whole training text has been encoded. Until then, scratch files hold
the piece IDs of the encoder.
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

# Concatenated piece IDs [N] of B sentences, and the sentence lengths [B].
Encoded = Tuple[np.ndarray, np.ndarray]
Name = TypeVar("Name", bound=Hashable)
SENTENCES = 1 << 16  # number of sentences in memory at a time


class EncodedText:
    """Encoded sentences, stored in two scratch files rather than in memory.

    Args:
        path: path of the scratch files without their extensions.

    Attributes:
        counts: int64 array whose entry n is the number of occurrences of piece ID n.
        longest: number of pieces in the longest sentence.
    """

    def __init__(self, path: Path) -> None:
        self._ids, self._sizes = (Path(f"{path}.{end}").open("w+b") for end in ("ids", "sizes"))
        self.counts = np.zeros(0, dtype=np.int64)
        self.longest = 0

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sentences.

        Args:
            ids: piece IDs of all sentences, concatenated.
            lengths: number of pieces per sentence.
        """
        counts = np.bincount(ids, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        ids.astype(np.int32, copy=False).tofile(self._ids)
        lengths.astype(np.int32, copy=False).tofile(self._sizes)

    @property
    def tokens(self) -> int:
        """Total number of pieces."""
        return int(self.counts.sum())

    def unknown(self, table: np.ndarray, dictionary: Dictionary) -> int:
        """Count the tokens that are not in a dictionary.

        Args:
            table: array whose entry n is the dictionary index of piece ID n.
            dictionary: fairseq dictionary.

        Returns:
            Number of unknown tokens.
        """
        return int(self.counts[table[: len(self.counts)] == dictionary.unk()].sum())

    def write(self, prefix: Path, table: np.ndarray, dictionary: Dictionary) -> None:
        """Write the text in fairseq's indexed format to ``PREFIX.bin`` and ``PREFIX.idx``.

        Both files are byte-identical to the output of fairseq-preprocess.

        Args:
            prefix: path of the files without their extensions.
            table: array whose entry n is the dictionary index of piece ID n.
            dictionary: fairseq dictionary. Its end-of-sentence symbol is appended to each sentence.
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
        """Write the lengths and offsets of the sentences to the index file, batch by batch.

        fairseq's own writer would keep all lengths in memory.

        Args:
            file: open index file, positioned after the header.
            dtype: numpy type of the dictionary indices.
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
        """Iterate over the sentence lengths in int32 arrays of up to 65,536 lengths."""
        self._sizes.seek(0)
        while True:
            lengths = np.fromfile(self._sizes, dtype=np.int32, count=SENTENCES)
            if not len(lengths):
                return
            yield lengths

    def _read_sentences(self) -> Iterator[Encoded]:
        """Iterate over the sentences in batches of up to 65,536.

        Yields:
            Concatenated piece IDs of a batch, and the length of each sentence.
        """
        self._ids.seek(0)
        for lengths in self._read_lengths():
            yield np.fromfile(self._ids, dtype=np.int32, count=int(lengths.sum())), lengths

    def close(self) -> None:
        """Close the scratch files. :func:`encoded_texts` deletes them."""
        self._ids.close()
        self._sizes.close()


@contextmanager
def encoded_texts(folder: Path, names: Sequence[Name]) -> Iterator[Dict[Name, EncodedText]]:
    """Context manager that creates empty encoded texts and deletes their scratch files on exit.

    Args:
        folder: folder for the scratch files. It is created, and deleted on exit.
        names: names of the texts.

    Yields:
        Mapping from each name to an empty :class:`EncodedText`.
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
        combine: If True, concatenate the split and its numbered continuations, such as ``train1``.

    Returns:
        fairseq dataset of token sequences.

    Raises:
        InputError: The files of the split do not exist.
    """
    if not dataset_exists(str(path), impl=None):
        raise InputError(
            f"{path}.bin and {path}.idx do not exist. Prepare the split {path.name!r}, or name another split."
        )
    return data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)


def select_sentences(encoded: Encoded, mask: np.ndarray) -> Encoded:
    """Select the sentences of a batch for which a mask is True.

    Args:
        encoded: concatenated piece IDs, and the lengths of the B sentences.
        mask: boolean array [B], True for the sentences to keep.

    Returns:
        Concatenated piece IDs and lengths of the selected sentences.

    Example:
        >>> select_sentences((np.array([5, 6, 7]), np.array([2, 1])), np.array([False, True]))
        (array([7]), array([1]))
    """
    ids, lengths = encoded
    return ids[np.repeat(mask, lengths)], lengths[mask]


def flatten_sentences(sentences: List[List[int]]) -> Encoded:
    """Concatenate lists of piece IDs into one array.

    Args:
        sentences: piece IDs of each sentence.

    Returns:
        Concatenated piece IDs, and the length of each sentence.

    Example:
        >>> flatten_sentences([[5, 6], [7]])
        (array([5, 6, 7], dtype=int32), array([2, 1], dtype=int32))
    """
    lengths = np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype=np.int32, count=int(lengths.sum())), lengths
