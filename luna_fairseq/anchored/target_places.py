"""Where a diagonal expects the source of each target token: counted from the beginning, or from that of its
sentence, where sentences of a document have separators between them."""

from typing import Tuple

from torch import Tensor

from fairseq.utils import make_positions


def target_places(tokens: Tensor, padding_idx: int) -> Tensor:
    """The number of each token of a target [B, T] among those that are not padding, from 0."""
    return (make_positions(tokens, padding_idx) - padding_idx - 1).clamp(min=0)


def sentence_places(
    tokens: Tensor, source: Tensor, padding_idx: int, separators: Tuple[int, int]
) -> Tuple[Tensor, Tensor]:
    """The same, counted anew from each separator on, and where the source has the sentence of that number.

    A target that has read k separators is in sentence k; one that has read more than the source has is
    expected at the end of it. Without separators the places are those of :func:`target_places`, and all
    origins 0.

    Args:
        tokens: of the target, shifted right, all so far [B n, T]
        source: its tokens [B, S]; n hypotheses of each follow one another
        padding_idx: of both
        separators: numbers of the separator in the source and in the target

    Returns:
        places [B n, T]; origins, the number of the source's tokens before the sentence, padding not counted
        [B n, T]
    """
    place = target_places(tokens, padding_idx)
    begins = tokens.eq(separators[1])
    beginning = (place * begins).cummax(dim=1).values
    return (place - beginning).clamp(min=0), _origins(
        begins.cumsum(dim=1), source, padding_idx, separators[0]
    )


def _origins(sentence: Tensor, source: Tensor, padding_idx: int, separator: int) -> Tensor:
    ends, real = source.eq(separator).long(), source.ne(padding_idx).long()
    B, S = source.shape
    following = ends.cumsum(dim=1) - ends + 1  # the number of the sentence after that of each token
    length = real.new_zeros(B, S + 1).scatter_add_(1, following, real)
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
