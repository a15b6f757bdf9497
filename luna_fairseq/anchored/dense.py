"""A look-up in short contexts: every query reads all of their tokens beside the rows of P.

Of few tokens a choice would save next to nothing, and what was not chosen learns nothing. The number that is
few is fixed, so that the cost of a query has a bound.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import chosen_segments
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.ops.attention import luna_attention, naive_attention


class Tokens(NamedTuple):
    """The tokens of the context as they stand.

    Attributes:
        key: [B, H, S, K]
        value: [B, H, S, K]
        left_out: [B, S], True at padding
        segment: for a batch in which some contexts are long, the row of P that a query must choose to read a
            token [B, S], -1 in the short ones
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, S]
    """

    key: Tensor
    value: Tensor
    left_out: Tensor
    segment: Optional[Tensor] = None
    place: Optional[Tensor] = None


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tokens: Tokens,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    diagonal: Optional[Diagonal] = None,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """What :func:`naive_lookup_attention` defines, at the cost of L + S keys a query. Arguments as there,
    with the tokens and a diagonal as they are here.

    Returns:
        output [B, H, T, K]; where asked for the weights before dropout [B, H, T, L + S], rows first
    """
    row_bias, token_bias = gate.new_zeros(1, 1, k.size(2)), gate[:, None, None]
    if diagonal is not None and tokens.place is not None:
        row_bias = diagonal.bias()
        token_bias = token_bias + diagonal.bias_at(tokens.place[:, None, None])
    if tokens.segment is not None:
        logits = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1) + row_bias
        unread = ~_read(chosen_segments(logits, packed_padding_mask, number), tokens.segment, k.size(2))
        token_bias = token_bias.masked_fill(unread, float("-inf"))
    shape = torch.broadcast_shapes(row_bias.shape[:-1], token_bias.shape[:-1])
    widths = k.size(2), tokens.key.size(2)
    bias = torch.cat([x.expand(*shape, n) for x, n in zip((row_bias, token_bias), widths)], dim=-1)
    inputs = q, torch.cat([k, tokens.key], dim=2), torch.cat([v, tokens.value], dim=2)
    rows_left_out = packed_padding_mask
    if rows_left_out is None:
        rows_left_out = torch.zeros_like(k[:, 0, :, 0], dtype=torch.bool)
    mask = torch.cat([rows_left_out, tokens.left_out], dim=1)
    if need_weights:
        return naive_attention(*inputs, mask, dropout, bias)
    return luna_attention(*inputs, mask, dropout, bias), None


def weights_of_dense(weights: Tensor, pack_weights: Tensor) -> Tensor:
    """Weights over the context [B, H, T, S]: what was read through the rows, and beside them.

    Args:
        weights: those of :func:`dense_attention` [B, H, T, L + S]
        pack_weights: the rows' own weights over the context, and over whatever else [B, H or 1, L, S or more]
    """
    L = pack_weights.size(-2)
    through_rows, of_tokens = weights[..., :L] @ pack_weights, weights[..., L:]
    return through_rows + F.pad(of_tokens, (0, through_rows.size(-1) - of_tokens.size(-1)))


def _read(chosen: Tensor, segment: Tensor, L: int) -> Tensor:
    """True at the tokens [B, H, T, S] of the segments ``chosen`` [B, H, T, N], and at those that need no
    choice."""
    of_part = torch.zeros(*chosen.shape[:3], L, dtype=torch.bool, device=segment.device).scatter(
        3, chosen, True
    )
    segment = segment[:, None, None, :]
    return of_part.gather(3, segment.clamp(min=0, max=L - 1).expand(*chosen.shape[:3], -1)) | (segment < 0)
