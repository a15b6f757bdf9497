"""Encoded text on disk: numbers of pieces until the dictionary is known, then fairseq's indexed format."""

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

# Numbers of pieces of some sentences [N], one after the other, and the length of each sentence [B].
Encoded = Tuple[np.ndarray, np.ndarray]
Name = TypeVar("Name", bound=Hashable)
SENTENCES = 1 << 16  # that are in memory at a time


class EncodedText:
    """Sentences whose pieces are numbered as the encoding numbers them, in two scratch files.

    Memory does not grow with the text.

    Args:
        path: of the files, without their endings.

    Attributes:
        counts: how often each piece occurs [number of pieces].
        longest: pieces of the longest sentence.
    """

    def __init__(self, path: Path) -> None:
        self._ids, self._sizes = (Path(f"{path}.{end}").open("w+b") for end in ("ids", "sizes"))
        self.counts = np.zeros(0, dtype=np.int64)
        self.longest = 0

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Append sentences: their pieces [N], and how many each of them has [B]."""
        counts = np.bincount(ids, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        ids.astype(np.int32, copy=False).tofile(self._ids)
        lengths.astype(np.int32, copy=False).tofile(self._sizes)

    @property
    def tokens(self) -> int:
        """Pieces in all."""
        return int(self.counts.sum())

    def unknown(self, table: np.ndarray, dictionary: Dictionary) -> int:
        """Tokens that ``table`` makes the unknown word."""
        return int(self.counts[table[: len(self.counts)] == dictionary.unk()].sum())

    def write(self, prefix: Path, table: np.ndarray, dictionary: Dictionary) -> None:
        """Write ``PREFIX.bin`` and ``PREFIX.idx``, bit for bit as fairseq-preprocess does; ``table`` has the
        index in the dictionary of each piece's number."""
        dtype = best_fitting_int_dtype(len(dictionary))
        table = table.astype(dtype)
        with replacing(Path(f"{prefix}.bin")) as binary, replacing(Path(f"{prefix}.idx")) as index:
            with binary.open("wb") as file:
                for ids, lengths in self._sentences():
                    np.insert(table[ids], np.cumsum(lengths), dictionary.eos()).tofile(file)
            with MMapIndexedDataset.Index.writer(str(index), dtype) as writer:
                self._write_index(writer._file, dtype)

    def _write_index(self, file: IO[bytes], dtype: Any) -> None:
        """What follows the header: the writer's own ``write`` needs all of it in lists."""
        file.write(struct.pack("<Q", self._sizes.seek(0, 2) // np.dtype(np.int32).itemsize))
        for lengths in self._lengths():
            (lengths + 1).astype(np.int32).tofile(file)
        start = 0
        for lengths in self._lengths():
            ends = start + np.cumsum((lengths + 1).astype(np.int64)) * np.dtype(dtype).itemsize
            np.concatenate([[start], ends[:-1]]).astype(np.int64).tofile(file)
            start = int(ends[-1])

    def _lengths(self) -> Iterator[np.ndarray]:
        self._sizes.seek(0)
        while True:
            lengths = np.fromfile(self._sizes, dtype=np.int32, count=SENTENCES)
            if not len(lengths):
                return
            yield lengths

    def _sentences(self) -> Iterator[Encoded]:
        self._ids.seek(0)
        for lengths in self._lengths():
            yield np.fromfile(self._ids, dtype=np.int32, count=int(lengths.sum())), lengths

    def close(self) -> None:
        """What is written is lost; see :func:`encoded_texts`."""
        self._ids.close()
        self._sizes.close()


@contextmanager
def encoded_texts(folder: Path, names: Sequence[Name]) -> Iterator[Dict[Name, EncodedText]]:
    """An :class:`EncodedText` for each name, with a folder of scratch files that is removed at the end."""
    with scratch_folder(folder), ExitStack() as stack:
        texts = {name: EncodedText(folder / str(number)) for number, name in enumerate(names)}
        for text in texts.values():
            stack.callback(text.close)
        yield texts


def read_indexed(path: Path, dictionary: Dictionary, combine: bool) -> Any:
    """fairseq's data set of the split ``path`` (and of its numbered files, to ``combine``). Raises InputError
    where there is none."""
    if not dataset_exists(str(path), impl=None):
        raise InputError(
            f"{path}.bin and {path}.idx do not exist: prepare the split {path.name!r}, or name another"
        )
    return data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)


def chosen(encoded: Encoded, sentences: np.ndarray) -> Encoded:
    """The sentences [B] that are true."""
    ids, lengths = encoded
    return ids[np.repeat(sentences, lengths)], lengths[sentences]


def flat(sentences: List[List[int]]) -> Encoded:
    """Lists of numbers, as arrays."""
    lengths = np.fromiter(map(len, sentences), dtype=np.int32, count=len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype=np.int32, count=int(lengths.sum())), lengths
