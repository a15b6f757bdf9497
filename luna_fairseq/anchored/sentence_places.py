"""Positions of tokens within the sentences of a document with sentence separators.

Shapes: B sources of S tokens, and n hypotheses of T target tokens for each source, adjacent in the batch.
"""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor


class UnfinishedSentence(NamedTuple):
    """Index [B * n] of the unfinished sentence in each target, and index [B * n] of its first token."""

    sentence: Tensor
    beginning: Tensor


def number_within_sentences(
    place: Tensor, begins: Tensor, before: Optional[UnfinishedSentence] = None
) -> Tuple[Tensor, Tensor, UnfinishedSentence]:
    """Return each token's index in its sentence, its sentence's index, and the unfinished sentence.

    ``place`` [B * n, T] is the index of each token in the target, without padding. ``begins`` marks the
    first token of each sentence, a separator in a target shifted right. ``before`` is the preceding
    unfinished sentence.
    """
    sentence, beginning = begins.cumsum(dim=1), (place * begins).cummax(dim=1).values
    if before is not None:
        sentence = sentence + before.sentence[:, None]
        beginning = beginning.maximum(before.beginning[:, None])
    return (place - beginning).clamp(min=0), sentence, UnfinishedSentence(sentence[:, -1], beginning[:, -1])


def sentence_numbers(separator: Tensor, padding: Tensor) -> Tensor:
    """Return the one-based number [B, S] of each source token's sentence, 0 at padding.

    ``separator`` [B, S] is True at separators, each the last token of a sentence.
    """
    ends = separator.long()
    return (ends.cumsum(dim=1) - ends + 1).masked_fill(padding, 0)


def count_tokens_before_sentence(sentence: Tensor, number: Tensor) -> Tensor:
    """Count the source tokens before source sentence k, if ``sentence`` [B * n, T] is k at a target token.

    ``number`` is from :func:`sentence_numbers`. Without a source sentence k, all source tokens count.
    """
    B, S = number.shape
    length = number.new_zeros(B, S + 1).scatter_add_(1, number, number.clamp(max=1))
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
