"""Where a diagonal expects the source of each target token: counted from the beginning, or from that of its
sentence, where sentences of a document have separators between them."""

from typing import Optional, Tuple

from torch import Tensor

from fairseq.utils import make_positions


def target_places(
    tokens: Tensor, source: Tensor, padding_idx: int, separators: Optional[Tuple[int, int]] = None
) -> Tuple[Tensor, Optional[Tensor]]:
    """The number of each token of a target among those that are not padding, from 0.

    With separators it is counted anew from each of them on. A target that has read k is in sentence k; one
    that has read more than the source has is expected at the end of it.

    Args:
        tokens: of the target, shifted right, all so far [B n, T]
        source: its tokens [B, S]; n hypotheses of each follow one another
        padding_idx: of both
        separators: numbers of the separator in the source and in the target (default: none)

    Returns:
        places [B n, T]; with separators origins, the number of the source's tokens before the sentence,
        padding not counted [B n, T], all 0 where the target has no separator
    """
    place = (make_positions(tokens, padding_idx) - padding_idx - 1).clamp(min=0)
    if separators is None:
        return place, None
    begins = tokens.eq(separators[1])
    beginning = (place * begins).cummax(dim=1).values
    origin = _origins(begins.cumsum(dim=1), source, padding_idx, separators[0])
    return (place - beginning).clamp(min=0), origin


def _origins(sentence: Tensor, source: Tensor, padding_idx: int, separator: int) -> Tensor:
    ends, real = source.eq(separator).long(), source.ne(padding_idx).long()
    B, S = source.shape
    following = ends.cumsum(dim=1) - ends + 1  # the number of the sentence after that of each token
    length = real.new_zeros(B, S + 1).scatter_add_(1, following, real)
    before: Tensor = length.cumsum(dim=1)
    return before.gather(1, sentence.reshape(B, -1).clamp(max=S)).view_as(sentence)
