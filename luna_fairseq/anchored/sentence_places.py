"""Positions of tokens within the sentences of a document with sentence separators.

Shapes: B sources of S tokens, and n hypotheses of T target tokens for each source, adjacent in the batch.
"""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor


class UnfinishedSentence(NamedTuple):
    """Unfinished last sentence of each target document. The next decoded tokens belong to this sentence.

    There are n hypotheses (candidate translations) for each of B sources.

    Attributes:
        sentence: number [B * n] of complete sentences before the unfinished sentence.
        beginning: index [B * n] of the first token of the unfinished sentence in the target document.
    """

    sentence: Tensor
    beginning: Tensor


def number_within_sentences(
    place: Tensor, begins: Tensor, before: Optional[UnfinishedSentence] = None
) -> Tuple[Tensor, Tensor, UnfinishedSentence]:
    """Number the target tokens of documents within their sentences, and number the sentences.

    ``place`` [B * n, T] is the index of each token in the target, without padding. ``begins`` [B * n, T] is
    True at separators. The target is shifted right, so each separator is the first token of a sentence; the
    first sentence has none. ``before`` is the unfinished sentence at the end of the preceding tokens.

    Return the index [B * n, T] of each token in its sentence, the index [B * n, T] of each token's sentence,
    and the unfinished sentence at the end of these tokens.
    """
    sentence, beginning = begins.cumsum(dim=1), (place * begins).cummax(dim=1).values
    if before is not None:
        sentence = sentence + before.sentence[:, None]
        beginning = beginning.maximum(before.beginning[:, None])
    return (place - beginning).clamp(min=0), sentence, UnfinishedSentence(sentence[:, -1], beginning[:, -1])


def sentence_numbers(separator: Tensor, padding: Tensor) -> Tensor:
    """Return the one-based sentence number [B, S] of each source token. Padding has the number 0.

    ``separator`` [B, S] is True at separators, each the last token of a sentence.
    """
    ends = separator.long()
    return (ends.cumsum(dim=1) - ends + 1).masked_fill(padding, 0)


def count_tokens_before_sentence(sentence: Tensor, number: Tensor) -> Tensor:
    """Count the source tokens before the source sentence with zero-based index ``sentence`` [B * n, T].

    ``number`` [B, S] is the one-based sentence number of each source token. For an index beyond the last
    sentence, the result is the number of all tokens. The result is [B * n, T].
    """
    B, S = number.shape
    length = number.new_zeros(B, S + 1).scatter_add_(1, number, number.clamp(max=1))
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
