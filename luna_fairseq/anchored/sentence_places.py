"""Positions of tokens within the sentences of a document with sentence separators."""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor


class UnfinishedSentence(NamedTuple):
    """Unfinished sentence at the end of the target tokens decoded so far.

    In beam search, a batch contains one target per hypothesis. There are B targets.

    Attributes:
        sentence: zero-based index [B] of the sentence in each target.
        beginning: zero-based index [B] of the sentence's first token in each target, not counting padding.
    """

    sentence: Tensor
    beginning: Tensor

    def select(self, rows: Tensor) -> "UnfinishedSentence":
        """Return the unfinished sentences of selected hypotheses, in the given order.

        Args:
            rows: indices of the hypotheses to return, as a vector.

        Returns:
            The unfinished sentences of these hypotheses.
        """
        return UnfinishedSentence(self.sentence.index_select(0, rows), self.beginning.index_select(0, rows))


def number_within_sentences(
    place: Tensor, begins: Tensor, before: Optional[UnfinishedSentence] = None
) -> Tuple[Tensor, Tensor, UnfinishedSentence]:
    """Compute the index of each target token in its sentence, and the index of the sentence in the target.

    A target is a document whose sentences are divided by separators.

    Shapes: B targets of T tokens.

    Args:
        place: zero-based index [B, T] of each token in the target, not counting padding.
        begins: mask [B, T], True at separators. In a target shifted right, a separator is the first token of
            a sentence.
        before: unfinished sentence of the preceding tokens (default: None, no preceding tokens).

    Returns:
        Tuple of three values:

        - zero-based index [B, T] of each token in its sentence.
        - zero-based index [B, T] of each token's sentence in the target.
        - unfinished sentence after the last token.

    Example:
        >>> import torch
        >>> begins = torch.tensor([[False, False, True, False]])
        >>> place, sentence, _ = number_within_sentences(torch.arange(4)[None], begins)
        >>> place.tolist(), sentence.tolist()
        ([[0, 1, 0, 1]], [[0, 0, 1, 1]])
    """
    sentence, beginning = begins.cumsum(dim=1), (place * begins).cummax(dim=1).values
    if before is not None:
        sentence = sentence + before.sentence[:, None]
        beginning = beginning.maximum(before.beginning[:, None])
    return (place - beginning).clamp(min=0), sentence, UnfinishedSentence(sentence[:, -1], beginning[:, -1])


def sentence_numbers(separator: Tensor, padding: Tensor) -> Tensor:
    """Return the number of the sentence that each source token belongs to.

    Args:
        separator: mask [B, S], True at separators, for B sources of S tokens. A separator belongs to the
            sentence that it ends.
        padding: mask [B, S], True at padding.

    Returns:
        One-based sentence numbers [B, S], with 0 at padding.

    Example:
        >>> import torch
        >>> separator = torch.tensor([[False, True, False, False]])
        >>> sentence_numbers(separator, torch.tensor([[False, False, False, True]])).tolist()
        [[1, 1, 2, 0]]
    """
    ends = separator.long()
    return (ends.cumsum(dim=1) - ends + 1).masked_fill(padding, 0)


def count_tokens_before_sentence(sentence: Tensor, number: Tensor) -> Tensor:
    """Count the source tokens that precede the source sentence aligned with each target token.

    Source and target are documents. Target sentence k is aligned with source sentence k. If the source has
    fewer sentences, all of its tokens are counted.

    Shapes: B sources of S tokens. Each source has n hypotheses of T target tokens, which are adjacent in the
    batch.

    Args:
        sentence: zero-based index [B * n, T] of each target token's sentence.
        number: one-based number [B, S] of each source token's sentence, and 0 at padding.

    Returns:
        Source-token counts [B * n, T], excluding padding.
    """
    B, S = number.shape
    length = number.new_zeros(B, S + 1).scatter_add_(1, number, number.clamp(max=1))
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
