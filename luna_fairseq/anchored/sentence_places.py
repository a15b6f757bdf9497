"""Places of tokens within the sentences of a document whose sentences are divided by separators."""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor


class UnfinishedSentence(NamedTuple):
    """Unfinished sentence at the end of the target tokens read so far.

    B is the number of targets in the batch.

    Attributes:
        sentence: number [B] of the sentence in the target, from 0.
        beginning: place [B] of its first token in the target, not counting padding.
    """

    sentence: Tensor
    beginning: Tensor

    def select(self, rows: Tensor) -> "UnfinishedSentence":
        """Return the unfinished sentences of some hypotheses, in the given order.

        Args:
            rows: indices [n] of the hypotheses to return.

        Returns:
            The unfinished sentences of these n hypotheses.
        """
        return UnfinishedSentence(self.sentence.index_select(0, rows), self.beginning.index_select(0, rows))


def number_within_sentences(
    place: Tensor, begins: Tensor, before: Optional[UnfinishedSentence] = None
) -> Tuple[Tensor, Tensor, UnfinishedSentence]:
    """Compute the index of each target token in its sentence, and the number of the sentence.

    B is the number of targets in the batch, and T their length.

    Args:
        place: index [B, T] of each token in the target, from 0, not counting padding.
        begins: mask [B, T], True at separators, which are the first tokens of sentences in a target shifted
            right.
        before: unfinished sentence of the preceding tokens (default: None, no token precedes).

    Returns:
        - index [B, T] of each token in its sentence.
        - number [B, T] of the sentence.
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
        separator: mask [B, S], True at separators; a separator belongs to the sentence that it ends.
        padding: mask [B, S], True at padding.

    Returns:
        The sentence numbers [B, S], from 1, and 0 at padding.
    """
    ends = separator.long()
    return (ends.cumsum(dim=1) - ends + 1).masked_fill(padding, 0)


def origins(sentence: Tensor, number: Tensor) -> Tensor:
    """Count the source tokens before the sentence that each target token belongs to.

    T is the length of the target, S the length of the source, and B the number of sources. Each source has n
    hypotheses, which are adjacent in the batch of targets.

    Args:
        sentence: sentence number [B n, T] of each target token, from 0.
        number: sentence number [B, S] of each source token, returned by :func:`sentence_numbers`.

    Returns:
        The counts [B n, T] without padding; the length of the source if it has no such sentence.
    """
    B, S = number.shape
    length = number.new_zeros(B, S + 1).scatter_add_(1, number, number.clamp(max=1))
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
