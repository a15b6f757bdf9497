"""Division of documents into pieces, each translated as one sequence, and of translations into sentences.

A document piece is a sequence of consecutive sentences, joined by the separator token ``<sep>``. Do not
confuse document pieces with subword pieces. An argument ``documents`` holds the number of sentences of each
document.
"""

from __future__ import annotations

from itertools import groupby, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import write_text
from luna_fairseq.text.bitext import Bitext, read_lines

if TYPE_CHECKING:  # that module imports fairseq, which takes seconds
    from luna_fairseq.text.indexed import Encoded

SEPARATOR = "<sep>"
# Extension of a third file, which contains the document identifier of each line.
IDS = "doc"


class DocumentPiece(NamedTuple):
    """Part of a document that is translated as one sequence.

    Attributes:
        document: index of the document.
        sentences: number of consecutive sentences in the piece.
    """

    document: int
    sentences: int


def document_lengths(prefix: str, text: Bitext) -> List[int]:
    """Return the number of sentences in each document of a parallel text.

    Documents are separated by empty lines in both files. If the file ``PREFIX.doc`` exists, it contains one
    document identifier per line instead, and consecutive equal lines form a document.
    """
    ids = Path(f"{prefix}.{IDS}")
    if ids.is_file():
        return _count_by_identifiers(ids, text)
    lengths = [0]
    for number, pair in _iterate_numbered_pairs(text):
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


def _count_by_identifiers(path: Path, text: Bitext) -> List[int]:
    """Return the number of sentences in each document, given a file with a document identifier per line."""
    ids = list(read_lines(path))
    if len(ids) != text.lines:
        raise InputError(
            f"{path} has {len(ids):,} lines, {text.source} has {text.lines:,}. Write one identifier for each "
            "line."
        )
    for number, pair in _iterate_numbered_pairs(text):
        if not all(pair):
            side = text.source if not pair[0] else text.target
            raise InputError(
                f"{side}, line {number} is empty: with {path}, every line must be a sentence. Remove the "
                "line from all files."
            )
    return [len(list(lines)) for _, lines in groupby(ids)]


def _iterate_numbered_pairs(text: Bitext) -> Iterator[Tuple[int, Tuple[str, str]]]:
    """Yield (line number, pair of lines). Raise InputError if a line contains the separator ``<sep>``."""
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
) -> Iterator[DocumentPiece]:
    """Divide documents at sentence boundaries into pieces of as many sentences as the token limit allows.

    ``documents`` holds the number of sentences in each document. ``sentences`` yields a tuple per sentence,
    with the number of source tokens and, if the limit applies to the target too, of target tokens. A piece
    has at most ``limit`` tokens, including separators. A longer sentence becomes a piece of its own.

    Example:
        >>> list(cut_documents([3], iter([(2,), (3,), (4,)]), limit=6))
        [DocumentPiece(document=0, sentences=2), DocumentPiece(document=0, sentences=1)]
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
                yield DocumentPiece(document, count)
            count, lengths = 1, new_lengths
        if count:
            yield DocumentPiece(document, count)


def split_into_pieces(
    batches: Iterable[Sequence[Encoded]], documents: Sequence[int], limit: int, separator: int, training: bool
) -> Iterator[Tuple[Optional[DocumentPiece], List[np.ndarray]]]:
    """Divide encoded documents into document pieces, and yield (piece, [source token IDs, target token IDs]).

    Each batch has a pair for the source and one for the target: the concatenated token IDs [N] of B
    sentences, and their lengths [B]. ``documents`` holds the number of sentences in each document. A piece
    has at most ``limit`` tokens, including the token ID ``separator`` between sentences.

    In training text, the limit applies to the source and the target. Each sentence of a piece with several
    sentences is also yielded separately, with None as the piece, so that the model learns to translate single
    sentences. In validation and test text, the limit applies to the source only.
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
    """Yield (source token IDs, target token IDs) for each sentence pair in encoded batches."""
    for sides in batches:
        sentences_by_side = []
        for ids, lengths in sides:
            if len(lengths):  # np.split would turn an empty batch into one empty sentence
                sentences_by_side.append(np.split(ids, np.cumsum(lengths)[:-1]))
        yield from zip(*sentences_by_side)


def _join_tokens(sentences: Sequence[np.ndarray], separator: int) -> np.ndarray:
    between = np.array([separator], dtype=sentences[0].dtype)
    parts = [part for sentence in sentences for part in (between, sentence)]
    return np.concatenate(parts[1:])


def join_sentences(sentences: Sequence[str]) -> str:
    """Join sentences with ``<sep>`` into one sequence to translate, such as "a b <sep> c"."""
    return f" {SEPARATOR} ".join(sentences)


def split_sentences(text: str, sentences: int) -> Optional[List[str]]:
    """Split a translation at ``<sep>``. Return None unless this gives ``sentences`` nonempty sentences."""
    parts = [" ".join(part.split()) for part in text.split(SEPARATOR)]
    return parts if len(parts) == sentences and all(parts) else None


def remove_separators(text: str) -> str:
    """Remove every ``<sep>`` that a model generated in the translation of a single sentence."""
    return " ".join(text.replace(SEPARATOR, " ").split())


def write_pieces(path: Path, pieces: Sequence[DocumentPiece]) -> None:
    """Write a list of document pieces to a file, one line "DOCUMENT<tab>SENTENCES" per piece."""
    write_text(path, "".join(f"{piece.document}\t{piece.sentences}\n" for piece in pieces))


def read_pieces(path: Path) -> List[DocumentPiece]:
    """Read the list of document pieces that :func:`write_pieces` wrote."""
    lines = list(read_lines(path))
    try:
        return [DocumentPiece(*map(int, line.split("\t"))) for line in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} does not list the number of sentences of each piece. Prepare the data again."
        ) from error
