"""fairseq's dictionaries of pieces and words, most frequent first, padded as by fairseq-preprocess."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, Mapping

from fairseq.data import Dictionary

PADDING_FACTOR = 8


def dictionary_of(pieces: Iterable[str], counts: Mapping[str, int]) -> Dictionary:
    """All ``pieces`` of an encoding, with those that the training text does not contain (``counts``, of the
    encoded text): other text may."""
    dictionary = Dictionary()
    for piece, count in Counter({piece: counts.get(piece, 0) for piece in pieces}).most_common():
        dictionary.add_symbol(piece, n=count)
    dictionary.pad_to_multiple_(PADDING_FACTOR)
    return dictionary


def dictionary_of_text(counts: Mapping[str, int], least: int = 1) -> Dictionary:
    """The pieces or words that occur ``least`` times or more in the training text; all others are fairseq's
    unknown word."""
    dictionary = Dictionary()
    for piece, count in counts.items():
        dictionary.add_symbol(piece, n=count)
    dictionary.finalize(threshold=least, padding_factor=PADDING_FACTOR)
    return dictionary
