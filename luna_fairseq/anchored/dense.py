"""Look-up that reads every token of the context beside the rows of P.

A choice among few tokens would save next to nothing, and tokens that are not chosen learn nothing. So a batch
of contexts of at most 64 tokens is read whole. An exported graph uses this form for contexts of every length,
and masks the tokens that a query has not chosen.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import chosen_segments
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.ops.attention import luna_attention, naive_attention


class Tokens(NamedTuple):
    """Tokens of the context in their order.

    Attributes:
        key: [B, H, S, K]
        value: [B, H, S, K]
        padding_mask: [B, S], True at padding
        segment: segment that a query must choose to read a token [B, S], -1 if every query reads the token;
            None if all tokens are read
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, S]
    """

    key: Tensor
    value: Tensor
    padding_mask: Tensor
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
    """Compute what :func:`naive_lookup_attention` defines, at the cost of L + S keys a query.

    Args:
        q, k, v, gate, number, packed_padding_mask, dropout: those of :func:`naive_lookup_attention`
        tokens: the context's tokens
        diagonal: bias of rows and tokens; its keys are the rows (default: no bias)
        need_weights: also return the weights (default: False)

    Returns:
        output [B, H, T, K], and weights before dropout [B, H, T, L + S], rows first, or None
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
    rows_mask = packed_padding_mask
    if rows_mask is None:
        rows_mask = torch.zeros_like(k[:, 0, :, 0], dtype=torch.bool)
    mask = torch.cat([rows_mask, tokens.padding_mask], dim=1)
    if need_weights:
        return naive_attention(*inputs, mask, dropout, bias)
    return luna_attention(*inputs, mask, dropout, bias), None


def weights_of_dense(weights: Tensor, pack_weights: Tensor) -> Tensor:
    """Compute a query's total weight for each token: through the rows of P, and beside them.

    Args:
        weights: weights returned by :func:`dense_attention` [B, H, T, L + S]
        pack_weights: weights of the rows over the context [B, H or 1, L, S]; columns beyond S get no other
            weight

    Returns:
        weights [B, H, T, S], or as wide as ``pack_weights``
    """
    L = pack_weights.size(-2)
    through_rows, of_tokens = weights[..., :L] @ pack_weights, weights[..., L:]
    return through_rows + F.pad(of_tokens, (0, through_rows.size(-1) - of_tokens.size(-1)))


def _read(chosen: Tensor, segment: Tensor, L: int) -> Tensor:
    """Return a mask of the tokens that each query reads [B, H, T, S].

    Args:
        chosen: segments that each query chose [B, H, T, N]
        segment: segment of each token [B, S], -1 if every query reads the token
        L: number of segments
    """
    # A tensor of ones, as a tracer does not know how to scatter a Python truth value.
    is_chosen = torch.zeros(*chosen.shape[:3], L, dtype=torch.bool, device=segment.device)
    is_chosen = is_chosen.scatter(3, chosen, torch.ones_like(chosen, dtype=torch.bool))
    segment = segment[:, None, None, :]
    return is_chosen.gather(3, segment.clamp(min=0, max=L - 1).expand(*chosen.shape[:3], -1)) | (segment < 0)
