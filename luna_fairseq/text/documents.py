"""Documents: their borders in a parallel text, cut into pieces of so many tokens, and put together again.

A piece is what a model reads and writes at once: sentences that follow one another in a document, with
:data:`SEPARATOR`, a symbol of its own in the dictionary, between them.
"""

from __future__ import annotations

from itertools import groupby, islice, tee
from pathlib import Path
from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.bitext import Bitext, read_lines

# Numbers of pieces of words [N], and the length of each sentence [B].
Encoded = Tuple[np.ndarray, np.ndarray]

SEPARATOR = "<sep>"
# The third file of a text without empty lines: which document each line is of.
IDS = "doc"


class Piece(NamedTuple):
    """
    Attributes:
        document: its number, from 0.
        sentences: how many of the text's sentences it holds, those that follow the piece before it.
    """

    document: int
    sentences: int


def document_lengths(prefix: str, text: Bitext) -> List[int]:
    """How many sentences each document of a parallel text has.

    Documents are what empty lines divide, the same in both files, or, where ``PREFIX.doc`` is there, lines of
    one id.

    Args:
        prefix: path without ``.LANG``.
        text: the files, which :func:`luna_fairseq.text.bitext.check_bitext` has found to have the same.

    Raises:
        InputError: a document is empty, or the separator stands in the text; names the file, the document and
            the line
    """
    ids = Path(f"{prefix}.{IDS}")
    if ids.is_file():
        return _by_ids(ids, text)
    lengths = [0]
    for number, pair in _numbered_pairs(text):
        if all(pair):
            lengths[-1] += 1
        elif not lengths[-1]:
            raise InputError(f"{text.source}, line {number}: document {len(lengths)} is empty")
        else:
            lengths.append(0)
    return lengths if lengths[-1] else lengths[:-1]  # an empty line may end the text


def _by_ids(path: Path, text: Bitext) -> List[int]:
    ids = list(read_lines(path))
    if len(ids) != text.lines:
        raise InputError(f"{path} has {len(ids):,} lines, {text.source} has {text.lines:,}: an id for each")
    for number, pair in _numbered_pairs(text):
        if not all(pair):
            side = text.source if not pair[0] else text.target
            raise InputError(f"{side}, line {number} is empty: with {path} every line is a sentence")
    return [len(list(lines)) for _, lines in groupby(ids)]


def _numbered_pairs(text: Bitext) -> Iterator[Tuple[int, Tuple[str, str]]]:
    """Raises InputError for one that holds the separator."""
    for number, pair in enumerate(zip(read_lines(text.source), read_lines(text.target)), 1):
        for path, line in zip((text.source, text.target), pair):
            if SEPARATOR in line:
                raise InputError(
                    f"{path}, line {number} holds {SEPARATOR}, which stands between the sentences of a "
                    "piece: write it in another way"
                )
        yield number, pair


def cut(documents: Sequence[int], sentences: Iterator[Tuple[int, ...]], limit: int) -> Iterator[Piece]:
    """Cut documents at sentence ends into pieces that are as long as possible.

    Args:
        documents: number of sentences of each document
        sentences: number of tokens of each sentence, on each side that counts
        limit: largest number of tokens of a piece, on any of these sides, with its separators; a longer
            sentence becomes a piece of its own
    """
    for document, number in enumerate(documents):
        held, lengths = 0, None  # type: int, Optional[Tuple[int, ...]]
        for _ in range(number):
            new = next(sentences)
            joined = None if lengths is None else tuple(a + 1 + b for a, b in zip(lengths, new))
            if joined is not None and max(joined) <= limit:
                held, lengths = held + 1, joined
                continue
            if held:
                yield Piece(document, held)
            held, lengths = 1, new
        if held:
            yield Piece(document, held)


def in_pieces(
    batches: Iterable[Sequence[Encoded]], documents: Sequence[int], limit: int, separator: int, training: bool
) -> Iterator[Tuple[Optional[Piece], List[np.ndarray]]]:
    """Yield the pieces of an encoded parallel text.

    The source alone decides where validation and test text is cut, as ``translate_document`` knows no target.
    Training text is cut so that both sides keep to the limit, and yields the single sentences as well.

    Args:
        batches: source and target sentences, as numbers
        documents: number of sentences of each document
        limit: largest number of tokens of a piece
        separator: number of the separator
        training: whether the text is training text

    Yields:
        the piece and its numbers on each side; None and the numbers for a sentence of a piece of several
    """
    one, other = tee(_sentences(batches))
    counted = 2 if training else 1
    for piece in cut(documents, (tuple(map(len, sides[:counted])) for sides in one), limit):
        sentences = list(islice(other, piece.sentences))
        yield piece, [_joined(side, separator) for side in zip(*sentences)]
        if training and len(sentences) > 1:
            for sides in sentences:
                yield None, list(sides)


def _sentences(batches: Iterable[Sequence[Encoded]]) -> Iterator[Tuple[np.ndarray, ...]]:
    for sides in batches:
        yield from zip(*(np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in sides if len(lengths)))


def _joined(sentences: Sequence[np.ndarray], separator: int) -> np.ndarray:
    between = np.array([separator], dtype=sentences[0].dtype)
    parts = [part for sentence in sentences for part in (between, sentence)]
    return np.concatenate(parts[1:])


def join(sentences: Sequence[str]) -> str:
    """One line of pieces of words from those of its sentences."""
    return f" {SEPARATOR} ".join(sentences)


def split(text: str, sentences: int) -> Optional[List[str]]:
    """Return the sentences of a translated piece, or None if their number is another or one is empty."""
    found = [" ".join(part.split()) for part in text.split(SEPARATOR)]
    return found if len(found) == sentences and all(found) else None


def remove_separators(text: str) -> str:
    """Return a sentence that was translated by itself with a space in place of each separator."""
    return " ".join(text.replace(SEPARATOR, " ").split())


def write_pieces(path: Path, pieces: Sequence[Piece]) -> None:
    """Write to ``path``, a line a piece: document and sentences, with a tab between."""
    write_text(path, "".join(f"{piece.document}\t{piece.sentences}\n" for piece in pieces))


def read_pieces(path: Path) -> List[Piece]:
    """What :func:`write_pieces` wrote. Raises InputError where it is not there, or something else."""
    lines = list(read_lines(path))
    try:
        return [Piece(*map(int, line.split("\t"))) for line in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not say how many sentences each piece holds: prepare the data again"
        ) from error
