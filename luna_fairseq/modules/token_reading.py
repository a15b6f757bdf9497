"""What unpack attention reads beside the rows of P, in the same softmax: tokens of the context, looked up or
near by."""

from typing import Optional, Tuple

from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.modules.anchors import Anchors
from luna_fairseq.modules.kept_context import KeptContext
from luna_fairseq.ops.luna import (
    Diagonal,
    Parts,
    Tokens,
    Window,
    by_parts,
    lookup_attention,
    weights_of_context,
    weights_of_whole,
    weights_of_window,
    whole_attention,
    window_attention,
)

Read = Tuple[Tensor, Optional[Tensor]]


def keep_looked_up(kept: KeptContext, key: Tensor, value: Tensor, anchors: Anchors) -> KeptContext:
    """``kept``, and the tokens [B, H, S, K] that a look-up may read: by parts, or as they stand where all are
    read."""
    position, empty, part = anchors.layout
    place = anchors.token_place
    if position is not None:
        key, value, _, _ = by_parts(key, value, position, empty)
        place = None if place is None else place.gather(1, position.flatten(1)).view_as(position)
    return kept._replace(
        token_key=key, token_value=value, empty=empty, position=position, part=part, token_place=place
    )


def look_up(
    q: Tensor,
    kept: KeptContext,
    gate: Tensor,
    number: int,
    mask: Optional[Tensor],
    dropout: float,
    diagonal: Optional[Diagonal],
    of_rows: Optional[Tensor],
) -> Read:
    """Unpack attention that also reads the tokens of the ``number`` parts that a query weighs most.

    Args:
        q: [B, H, T, K]
        kept: with the tokens
        gate: added to the logits of tokens [H]
        number: of parts
        mask: [B, L], True at rows of P that are left out
        dropout: probability with which a weight is dropped
        diagonal: the prior for the queries' places, if any
        of_rows: the rows' weights over the context [B, 1, L, S], where the query's are wanted

    Returns:
        output [B, H, T, K]; weights over the context [B, H, T, S] or None
    """
    how = gate, number, mask, dropout, diagonal
    tokens = kept.token_key, kept.token_value, kept.empty
    if kept.position is None:
        whole = Tokens(*tokens, kept.part, kept.token_place)
        output, weights = whole_attention(q, kept.key, kept.value, whole, *how, of_rows is not None)
        return output, None if of_rows is None else weights_of_whole(weights, of_rows)
    read = lookup_attention(q, kept.key, kept.value, Parts(*tokens, kept.token_place), *how)
    return read.output, None if of_rows is None else weights_of_context(read, kept.position, of_rows)


def look_around(
    q: Tensor,
    kept: KeptContext,
    window: Window,
    strength: Tensor,
    dropout: float,
    of_rows: Optional[Tensor],
) -> Read:
    """Unpack attention of the context itself that also reads the tokens of the parts around a token, drawn to
    what is near by ``strength``, gamma of each head [H]. Other arguments and results as of :func:`look_up`.

    Raises:
        InputError: the query is not the context
    """
    if q.size(2) != window.place.size(1):
        raise InputError(
            f"local parts are for self-attention: the query has {q.size(2)} tokens, the context "
            f"{window.place.size(1)}"
        )
    tokens = kept.token_key, kept.token_value
    output, weights = window_attention(q, kept.key, kept.value, *tokens, strength, window, dropout)
    return output, None if of_rows is None else weights_of_window(weights, window, of_rows)
