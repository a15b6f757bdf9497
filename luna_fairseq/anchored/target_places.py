"""Target token positions, in the target or in its sentences, for a diagonal prior (diagonal.py)."""

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
    """Return the position of each target token and, in a document, of its aligned source sentence.

    ``tokens`` [B * n, T] are the target token ids, with n hypotheses (1 in training) for each of B sources,
    and ``source`` [B, S] the source token ids. ``separators`` is the pair of ids, in source and target, of
    the token that separates the sentences of a document. It is None if each example is a single sentence.

    Return two values. The first is the zero-based index [B * n, T] of each token in the target, not counting
    padding. With ``separators``, the index restarts at each separator. The second value is the number
    [B * n, T] of source tokens before the aligned source sentence. It is None without ``separators``.
    """
    place = token_places(tokens.eq(padding_idx))
    if separators is None:
        return place, None
    place, sentence, _ = number_within_sentences(place, tokens.eq(separators[1]))
    source_sentence = sentence_numbers(source.eq(separators[0]), source.eq(padding_idx))
    return place, count_tokens_before_sentence(sentence, source_sentence)
