"""Storage of encoded text in scratch files, and conversion to fairseq's indexed format.

Until the whole training text has been encoded, its dictionary is unknown. The scratch files therefore hold
the encoder's IDs of subword pieces. A ``table`` maps each piece ID to its index in the dictionary.
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
    """Encoded sentences, stored in the scratch files ``PATH.ids`` and ``PATH.sizes`` to save memory.

    Attributes:
        counts: number of occurrences of each subword piece, indexed by piece ID.
        longest: number of pieces in the longest sentence.
    """

    def __init__(self, path: Path) -> None:
        self._ids, self._sizes = (Path(f"{path}.{end}").open("w+b") for end in ("ids", "sizes"))
        self.counts = np.zeros(0, dtype=np.int64)
        self.longest = 0

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sentences to the scratch files, and update ``counts`` and ``longest``.

        ``ids`` are the concatenated piece IDs, and ``lengths`` the number of pieces in each sentence.
        """
        counts = np.bincount(ids, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        ids.astype(np.int32, copy=False).tofile(self._ids)
        lengths.astype(np.int32, copy=False).tofile(self._sizes)

    @property
    def tokens(self) -> int:
        """Total number of subword pieces in the text."""
        return int(self.counts.sum())

    def unknown(self, table: np.ndarray, dictionary: Dictionary) -> int:
        """Count the tokens that are not in a dictionary. ``table`` maps piece IDs to dictionary indices."""
        return int(self.counts[table[: len(self.counts)] == dictionary.unk()].sum())

    def write(self, prefix: Path, table: np.ndarray, dictionary: Dictionary) -> None:
        """Write the text in fairseq's indexed format to ``PREFIX.bin`` and ``PREFIX.idx``.

        ``table`` maps each piece ID to its dictionary index. Both files are byte-identical to the output of
        fairseq-preprocess.
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
        """Write sentence lengths and offsets after the header of an index file, in chunks to save memory."""
        file.write(struct.pack("<Q", self._sizes.seek(0, 2) // np.dtype(np.int32).itemsize))
        for lengths in self._read_lengths():
            (lengths + 1).astype(np.int32).tofile(file)
        start = 0
        for lengths in self._read_lengths():
            ends = start + np.cumsum((lengths + 1).astype(np.int64)) * np.dtype(dtype).itemsize
            np.concatenate([[start], ends[:-1]]).astype(np.int64).tofile(file)
            start = int(ends[-1])

    def _read_lengths(self) -> Iterator[np.ndarray]:
        """Yield the sentence lengths in arrays of up to 65,536 lengths."""
        self._sizes.seek(0)
        while True:
            lengths = np.fromfile(self._sizes, dtype=np.int32, count=SENTENCES)
            if not len(lengths):
                return
            yield lengths

    def _read_sentences(self) -> Iterator[Encoded]:
        """Yield (concatenated piece IDs [N], sentence lengths [B]) in batches of up to 65,536 sentences."""
        self._ids.seek(0)
        for lengths in self._read_lengths():
            yield np.fromfile(self._ids, dtype=np.int32, count=int(lengths.sum())), lengths

    def close(self) -> None:
        """Close the scratch files. The context manager :func:`encoded_texts` deletes them."""
        self._ids.close()
        self._sizes.close()


@contextmanager
def encoded_texts(folder: Path, names: Sequence[Name]) -> Iterator[Dict[Name, EncodedText]]:
    """Context manager that yields an empty :class:`EncodedText` for each name, keyed by name.

    The scratch files of the texts are in ``folder``, and are deleted when the context ends.
    """
    with scratch_folder(folder), ExitStack() as stack:
        texts = {name: EncodedText(folder / str(number)) for number, name in enumerate(names)}
        for text in texts.values():
            stack.callback(text.close)
        yield texts


def read_indexed(path: Path, dictionary: Dictionary, combine: bool) -> Any:
    """Load a split in fairseq's indexed format, such as ``data-bin/train``.

    With ``combine``, numbered files of the split, such as ``train1``, are appended.
    """
    if not dataset_exists(str(path), impl=None):
        raise InputError(
            f"{path}.bin and {path}.idx do not exist. Prepare the split {path.name!r}, or name another split."
        )
    return data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)


def select_sentences(encoded: Encoded, mask: np.ndarray) -> Encoded:
    """Return the sentences of a batch for which the boolean ``mask`` [B] is True.

    ``encoded`` is a pair: the concatenated piece IDs [N] of all sentences, and the sentence lengths [B].
    """
    ids, lengths = encoded
    return ids[np.repeat(mask, lengths)], lengths[mask]


def flatten_sentences(sentences: List[List[int]]) -> Encoded:
    """Concatenate B lists of piece IDs. Return the array [N] and the lengths of the lists [B]."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype=np.int32, count=int(lengths.sum())), lengths
