"""fairseq dictionaries, sorted by frequency and padded to a multiple of 8 as in fairseq-preprocess."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping

from fairseq.data import Dictionary

PADDING_FACTOR = 8  # sizes are padded to a multiple of this number


def build_dictionary(pieces: Iterable[str], counts: Mapping[str, int]) -> Dictionary:
    """Build a fairseq dictionary from subword pieces, sorted by decreasing frequency.

    ``counts`` maps pieces to their frequency in the training text. Pieces that do not occur there are
    included, because other text may contain them.
    """
    dictionary = Dictionary()
    for piece, count in Counter({piece: counts.get(piece, 0) for piece in pieces}).most_common():
        dictionary.add_symbol(piece, n=count)
    dictionary.pad_to_multiple_(PADDING_FACTOR)
    return dictionary


def build_text_dictionary(counts: Mapping[str, int], min_count: int = 1) -> Dictionary:
    """Build a dictionary of the words or subword pieces that occur at least ``min_count`` times in a text."""
    dictionary = Dictionary()
    for piece, count in counts.items():
        dictionary.add_symbol(piece, n=count)
    dictionary.finalize(threshold=min_count, padding_factor=PADDING_FACTOR)
    return dictionary
