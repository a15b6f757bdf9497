"""Compute where a diagonal expects the source of each target token: counted from the beginning of the target,
or of its sentence in a document with separators."""

from typing import Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.sentence_places import origins, sentence_numbers, within_sentences
from luna_fairseq.modules.batch import token_places


def target_places(
    tokens: Tensor, source: Tensor, padding_idx: int, separators: Optional[Tuple[int, int]] = None
) -> Tuple[Tensor, Optional[Tensor]]:
    """Number the tokens of a target from 0, without padding.

    With separators, the count begins anew at each of them. A target that has read k separators is in sentence
    k. A target with more sentences than the source is expected at the end of the source.

    Args:
        tokens: the target shifted right, all tokens so far [B n, T]
        source: its source [B, S]; the n hypotheses of a source follow one another
        padding_idx: padding of both
        separators: the separator in the source and in the target (default: None, no separators)

    Returns:
        places [B n, T]; with separators origins [B n, T], the number of the source's tokens before the
        sentence, otherwise None
    """
    place = token_places(tokens.eq(padding_idx))
    if separators is None:
        return place, None
    place, sentence, _ = within_sentences(place, tokens.eq(separators[1]))
    return place, origins(sentence, sentence_numbers(source.eq(separators[0]), source.eq(padding_idx)))
