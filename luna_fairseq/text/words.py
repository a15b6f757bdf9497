"""Vocabularies of whole words."""

from __future__ import annotations

from typing import Mapping

from fairseq.data import Dictionary

PADDING_FACTOR = 8


def word_dictionary(counts: Mapping[str, int], least: int) -> Dictionary:
    """The words that occur often enough, the most frequent first; all others are fairseq's unknown word.

    Args:
        counts: word -> how often it occurs in the training text.
        least: how often a word of the dictionary occurs.
    """
    dictionary = Dictionary()
    for word, count in counts.items():
        dictionary.add_symbol(word, n=count)
    dictionary.finalize(threshold=least, padding_factor=PADDING_FACTOR)
    return dictionary
