"""Where a diagonal expects the source of each target token: counted from the beginning, or from that of its
sentence, where sentences of a document have separators between them."""

from typing import Optional, Tuple

from torch import Tensor

from fairseq.utils import make_positions
from luna_fairseq.anchored.sentence_places import origins, sentence_numbers, within_sentences


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
    place, sentence, _ = within_sentences(place, tokens.eq(separators[1]))
    return place, origins(sentence, sentence_numbers(source.eq(separators[0]), source.eq(padding_idx)))
