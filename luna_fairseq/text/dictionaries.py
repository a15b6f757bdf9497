"""Build dictionaries in fairseq's format, sorted by frequency and padded as in fairseq-preprocess."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping

from fairseq.data import Dictionary

PADDING_FACTOR = 8  # sizes are padded to a multiple of this number


def build_dictionary(pieces: Iterable[str], counts: Mapping[str, int]) -> Dictionary:
    """Build a dictionary that contains every piece of a subword vocabulary.

    Pieces that do not occur in the training text get a count of 0. They are included because other text may
    contain them.

    Args:
        pieces: all pieces of the subword vocabulary.
        counts: mapping from a piece to its number of occurrences in the training text.

    Returns:
        Dictionary, sorted by decreasing frequency.

    Example:
        >>> build_dictionary(["a", "b"], {"b": 3}).symbols[4:6]
        ['b', 'a']
    """
    dictionary = Dictionary()
    for piece, count in Counter({piece: counts.get(piece, 0) for piece in pieces}).most_common():
        dictionary.add_symbol(piece, n=count)
    dictionary.pad_to_multiple_(PADDING_FACTOR)
    return dictionary


def build_text_dictionary(counts: Mapping[str, int], min_count: int = 1) -> Dictionary:
    """Build a dictionary of the words or subword pieces that occur in the training text.

    Args:
        counts: mapping from a word or piece to its number of occurrences in the training text.
        min_count: minimum number of occurrences (default: 1). Rarer words are mapped to fairseq's unknown
            token.

    Returns:
        Dictionary, sorted by decreasing frequency.

    Example:
        >>> build_text_dictionary({"the": 3, "cat": 1}, min_count=2).symbols[4:5]
        ['the']
    """
    dictionary = Dictionary()
    for piece, count in counts.items():
        dictionary.add_symbol(piece, n=count)
    dictionary.finalize(threshold=min_count, padding_factor=PADDING_FACTOR)
    return dictionary
