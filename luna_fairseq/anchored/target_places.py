"""Positions of target tokens for a diagonal prior, within the target or within its sentences."""

from typing import Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.sentence_places import (
    count_tokens_before_sentence,
    number_within_sentences,
    sentence_numbers,
)
from luna_fairseq.modules.batch import token_places


def target_places(
    tokens: Tensor, source: Tensor, padding_idx: int, separators: Optional[Tuple[int, int]] = None
) -> Tuple[Tensor, Optional[Tensor]]:
    """Compute the zero-based index of each target token, not counting padding.

    With ``separators`` (the ids of the separator in both dictionaries), source and target are documents. The
    index then restarts at each separator, and target sentence k is aligned with source sentence k. The second
    result is the number of source tokens before the aligned sentence, at most all of them.

    Both results are [B * n, T] for B sources, given as ``source`` [B, S], with n hypotheses of T ``tokens``
    each, which are shifted right and adjacent in the batch.
    """
    place = token_places(tokens.eq(padding_idx))
    if separators is None:
        return place, None
    place, sentence, _ = number_within_sentences(place, tokens.eq(separators[1]))
    source_sentence = sentence_numbers(source.eq(separators[0]), source.eq(padding_idx))
    return place, count_tokens_before_sentence(sentence, source_sentence)
