"""Documents: find their borders in parallel text, cut them into pieces, and join the translations.

A piece is the part of a document that a model reads and writes at once: consecutive sentences with
:data:`SEPARATOR`, a symbol of the dictionary, between them.
"""

from __future__ import annotations

from itertools import groupby, islice, tee
from pathlib import Path
from typing import Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.bitext import Bitext, read_lines

# Piece numbers [N] of B sentences, concatenated, and the length of each sentence [B].
Encoded = Tuple[np.ndarray, np.ndarray]

SEPARATOR = "<sep>"
# Extension of a third file, which holds the document of each line if the text has no empty lines.
IDS = "doc"


class Piece(NamedTuple):
    """Consecutive sentences of one document.

    Attributes:
        document: number of the document, counted from 0.
        sentences: number of sentences in the piece.
    """

    document: int
    sentences: int


def document_lengths(prefix: str, text: Bitext) -> List[int]:
    """Count the sentences of each document of a parallel text.

    Documents are separated by empty lines at the same positions in both files. If ``PREFIX.doc`` exists, it
    holds an identifier for each line, and consecutive lines with the same identifier form a document.

    Args:
        prefix: path of the text without ``.LANG``.
        text: the text, checked by :func:`luna_fairseq.text.bitext.check_bitext`.

    Returns:
        Number of sentences of each document.

    Raises:
        InputError: A document is empty, a line contains the separator, or ``PREFIX.doc`` does not fit the
            text. The message names the file and the line.
    """
    ids = Path(f"{prefix}.{IDS}")
    if ids.is_file():
        return _lengths_by_ids(ids, text)
    lengths = [0]
    for number, pair in _numbered_pairs(text):
        if all(pair):
            lengths[-1] += 1
        elif not lengths[-1]:
            raise InputError(
                f"{text.source}, line {number}: document {len(lengths)} is empty. Remove the line from both "
                "files."
            )
        else:
            lengths.append(0)
    return lengths if lengths[-1] else lengths[:-1]  # an empty line may follow the last document


def _lengths_by_ids(path: Path, text: Bitext) -> List[int]:
    """Count the sentences of each document from a file with an identifier for each line.

    Args:
        path: path of the file with the identifiers.
        text: parallel text to which the identifiers belong.

    Returns:
        Number of sentences of each document.

    Raises:
        InputError: The numbers of lines differ, or a line of the text is empty.
    """
    ids = list(read_lines(path))
    if len(ids) != text.lines:
        raise InputError(
            f"{path} has {len(ids):,} lines, {text.source} has {text.lines:,}. Write one identifier for each "
            "line."
        )
    for number, pair in _numbered_pairs(text):
        if not all(pair):
            side = text.source if not pair[0] else text.target
            raise InputError(
                f"{side}, line {number} is empty: with {path}, every line must be a sentence. Remove the "
                "line from all files."
            )
    return [len(list(lines)) for _, lines in groupby(ids)]


def _numbered_pairs(text: Bitext) -> Iterator[Tuple[int, Tuple[str, str]]]:
    """Iterate over the pairs of lines of a parallel text, with line numbers.

    Args:
        text: checked parallel text.

    Yields:
        Line number, counted from 1, and the source line with its target line.

    Raises:
        InputError: A line contains the separator.
    """
    for number, pair in enumerate(zip(read_lines(text.source), read_lines(text.target)), 1):
        for path, line in zip((text.source, text.target), pair):
            if SEPARATOR in line:
                raise InputError(
                    f"{path}, line {number} contains {SEPARATOR}, which separates the sentences of a piece. "
                    f"Remove {SEPARATOR} from the text."
                )
        yield number, pair


def cut_documents(
    documents: Sequence[int], sentences: Iterator[Tuple[int, ...]], limit: int
) -> Iterator[Piece]:
    """Cut documents between sentences into pieces that are as long as possible.

    Args:
        documents: number of sentences of each document.
        sentences: number of tokens of each sentence, on each side that the limit applies to.
        limit: maximum number of tokens of a piece on each of these sides, including separators. A longer
            sentence becomes a piece of its own.

    Yields:
        The pieces, in the order of the text.

    Example:
        >>> list(cut_documents([3], iter([(2,), (3,), (4,)]), limit=6))
        [Piece(document=0, sentences=2), Piece(document=0, sentences=1)]
    """
    for document, number_of_sentences in enumerate(documents):
        count, lengths = 0, None  # type: int, Optional[Tuple[int, ...]]
        for _ in range(number_of_sentences):
            new_lengths = next(sentences)
            joined = None if lengths is None else tuple(a + 1 + b for a, b in zip(lengths, new_lengths))
            if joined is not None and max(joined) <= limit:
                count, lengths = count + 1, joined
                continue
            if count:
                yield Piece(document, count)
            count, lengths = 1, new_lengths
        if count:
            yield Piece(document, count)


def split_into_pieces(
    batches: Iterable[Sequence[Encoded]], documents: Sequence[int], limit: int, separator: int, training: bool
) -> Iterator[Tuple[Optional[Piece], List[np.ndarray]]]:
    """Yield the pieces of an encoded parallel text.

    For validation and test text, the limit applies to the source only, because ``translate_document`` does
    not know the target. For training text, the limit applies to both sides, and the single sentences of each
    piece are examples, too.

    Args:
        batches: encoded source and target sentences, in batches.
        documents: number of sentences of each document.
        limit: maximum number of tokens of a piece.
        separator: number of the separator.
        training: True for training text.

    Yields:
        piece: the piece, or None for a single sentence from a piece of several sentences.
        sides: token numbers of the source and of the target.
    """
    for_cutting, for_joining = tee(_iterate_sentences(batches))
    limited_sides = 2 if training else 1
    lengths = (tuple(map(len, sides[:limited_sides])) for sides in for_cutting)
    for piece in cut_documents(documents, lengths, limit):
        sentences = list(islice(for_joining, piece.sentences))
        yield piece, [_join_tokens(side, separator) for side in zip(*sentences)]
        if training and len(sentences) > 1:
            for sides in sentences:
                yield None, list(sides)


def _iterate_sentences(batches: Iterable[Sequence[Encoded]]) -> Iterator[Tuple[np.ndarray, ...]]:
    """Yield the token numbers of each sentence, on all sides."""
    for sides in batches:
        yield from zip(*(np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in sides if len(lengths)))


def _join_tokens(sentences: Sequence[np.ndarray], separator: int) -> np.ndarray:
    between = np.array([separator], dtype=sentences[0].dtype)
    parts = [part for sentence in sentences for part in (between, sentence)]
    return np.concatenate(parts[1:])


def join(sentences: Sequence[str]) -> str:
    """Join encoded sentences to a piece.

    Args:
        sentences: sentences as subword pieces between spaces.

    Returns:
        Piece, with a separator between its sentences.

    Example:
        >>> join(["a b", "c"])
        'a b <sep> c'
    """
    return f" {SEPARATOR} ".join(sentences)


def split(text: str, sentences: int) -> Optional[List[str]]:
    """Split a translated piece into its sentences.

    Args:
        text: translation of the piece.
        sentences: expected number of sentences.

    Returns:
        The sentences, or None if their number differs from the expected one or a sentence is empty.

    Example:
        >>> split("A B <sep> C", 2)
        ['A B', 'C']
    """
    parts = [" ".join(part.split()) for part in text.split(SEPARATOR)]
    return parts if len(parts) == sentences and all(parts) else None


def remove_separators(text: str) -> str:
    """Replace each separator by a space, in the translation of a single sentence.

    Args:
        text: translation of the sentence.

    Returns:
        Text without separators.
    """
    return " ".join(text.replace(SEPARATOR, " ").split())


def write_pieces(path: Path, pieces: Sequence[Piece]) -> None:
    """Write the pieces of a text to a file, one on each line: document, tab, number of sentences.

    Args:
        path: path of the file.
        pieces: pieces in the order of the text.
    """
    write_text(path, "".join(f"{piece.document}\t{piece.sentences}\n" for piece in pieces))


def read_pieces(path: Path) -> List[Piece]:
    """Read the file that :func:`write_pieces` wrote.

    Args:
        path: path of the file.

    Returns:
        Pieces in the order of the file.

    Raises:
        InputError: The file is missing or has other content.
    """
    lines = list(read_lines(path))
    try:
        return [Piece(*map(int, line.split("\t"))) for line in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not list the number of sentences of each piece. Prepare the data again."
        ) from error
