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

    With separators, source and target are documents. The index then restarts at each separator, and the
    tokens after k separators belong to sentence k, which is aligned with source sentence k. If the target has
    more sentences than the source, the surplus sentences start at the end of the source.

    Shapes: B sources of S tokens. Each source has n hypotheses of T target tokens, which are adjacent in the
    batch.

    Args:
        tokens: ids [B * n, T] of all target tokens so far, shifted right.
        source: source token ids [B, S].
        padding_idx: id of the padding token in both dictionaries.
        separators: ids of the separator in the source and in the target dictionary (default: None, tokens are
            counted from the beginning of the target).

    Returns:
        Tuple of two values:

        - zero-based index [B * n, T] of each token in its target or sentence.
        - number [B * n, T] of source tokens before the aligned source sentence, or None if there are no
          separators.
    """
    place = token_places(tokens.eq(padding_idx))
    if separators is None:
        return place, None
    place, sentence, _ = number_within_sentences(place, tokens.eq(separators[1]))
    source_sentence = sentence_numbers(source.eq(separators[0]), source.eq(padding_idx))
    return place, count_tokens_before_sentence(sentence, source_sentence)
