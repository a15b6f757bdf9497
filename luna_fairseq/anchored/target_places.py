"""Places of target tokens for a diagonal prior, counted within the target or within its sentences."""

from typing import Optional, Tuple

from torch import Tensor

from luna_fairseq.anchored.sentence_places import number_within_sentences, origins, sentence_numbers
from luna_fairseq.modules.batch import token_places


def target_places(
    tokens: Tensor, source: Tensor, padding_idx: int, separators: Optional[Tuple[int, int]] = None
) -> Tuple[Tensor, Optional[Tensor]]:
    """Compute the index of each target token, from 0, not counting padding.

    With separators, the index restarts at each separator. Tokens after k separators belong to sentence k. If
    the target has more sentences than the source, the surplus sentences start at the end of the source.

    T is the length of the target, S the length of the source, and B the number of sources. Each source has n
    hypotheses, which are adjacent in the batch of targets.

    Args:
        tokens: all target tokens so far, shifted right [B n, T].
        source: source tokens [B, S].
        padding_idx: index of padding in both dictionaries.
        separators: index of the separator in the source dictionary and in the target dictionary (default:
            None, tokens are counted from the beginning of the target).

    Returns:
        - index [B n, T] of each token in its target or sentence.
        - number [B n, T] of source tokens before the sentence, or None without separators.
    """
    place = token_places(tokens.eq(padding_idx))
    if separators is None:
        return place, None
    place, sentence, _ = number_within_sentences(place, tokens.eq(separators[1]))
    return place, origins(sentence, sentence_numbers(source.eq(separators[0]), source.eq(padding_idx)))
