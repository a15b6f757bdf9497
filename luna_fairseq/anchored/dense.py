"""Look-up attention, computed as ordinary softmax attention over the packed context and all tokens.

In look-up attention, queries attend to the packed context and to the tokens of a few segments, runs of
consecutive tokens. This dense implementation is used if no context in a batch has more than 64 tokens.
Choosing among so few tokens would save little, and tokens that are not chosen receive no gradient. An
exported graph uses the dense implementation for all lengths, and masks the tokens that a query did not
choose.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import choose_segments
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.ops.attention import luna_attention, naive_attention


class Tokens(NamedTuple):
    """Keys and values of the context tokens, in context order.

    Shapes: batch size B, H heads of dimension K, S context tokens.

    Attributes:
        key: keys [B, H, S, K].
        value: values [B, H, S, K].
        padding_mask: mask [B, S], True at padding.
        segment: index [B, S] of the segment that contains each token. A segment is a run of consecutive
            tokens. A query attends to a token only if it chooses this segment; -1 means that every query
            attends to the token (default: None, every query attends to all tokens).
        place: centre [B, S] of each token, in tokens from the start of the context (default: None, no
            diagonal prior).
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
    """Compute look-up attention as softmax attention over the packed context and all tokens.

    The context is divided into L segments, runs of consecutive tokens. Row i of the packed context summarizes
    segment i. Each query attends to all L rows, and to the tokens of the ``number`` segments whose rows have
    the largest logits. If ``tokens.segment`` is None, each query attends to all tokens. One softmax covers
    rows and tokens. The result matches :func:`luna_fairseq.anchored.lookup.naive_lookup_attention` up to
    rounding.

    Shapes: batch size B, H heads of dimension K, T queries, S context tokens.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5.
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        tokens: keys and values [B, H, S, K] of the context tokens.
        gate: learned bias [H] added to the token logits.
        number: number of segments that each query and head chooses.
        packed_padding_mask: mask [B, L], True at padded rows (default: None, no padding).
        dropout: dropout probability of the attention weights (default: 0).
        diagonal: diagonal prior, a bias that favours rows and tokens near the source position expected for
            each query (default: None, no bias).
        need_weights: also return the attention weights (default: False).

    Returns:
        Tuple of two values:

        - output [B, H, T, K], the weighted sum of the values of rows and tokens.
        - attention weights [B, H, T, L + S] before dropout, first of the rows and then of the tokens (None if
          ``need_weights`` is False).
    """
    row_bias, token_bias = gate.new_zeros(1, 1, k.size(2)), gate[:, None, None]
    if diagonal is not None and tokens.place is not None:
        row_bias = diagonal.bias()
        token_bias = token_bias + diagonal.bias_at(tokens.place[:, None, None])
    if tokens.segment is not None:
        logits = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1) + row_bias
        chosen = choose_segments(logits, packed_padding_mask, number)
        unread = ~_find_read_tokens(chosen, tokens.segment, k.size(2))
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


def total_dense_weights(weights: Tensor, pack_weights: Tensor) -> Tensor:
    """Compute the total attention weight of each query over each context token.

    A query attends to a token through the L rows of the packed sequence P, and also directly. The total
    weight is ``row_weights @ pack_weights`` plus the direct weight.

    Shapes: batch size B, H heads, T queries, S context tokens.

    Args:
        weights: attention weights [B, H, T, L + S] over rows and tokens, returned by :func:`dense_attention`.
        pack_weights: attention weights [B, H or 1, L, S'] of each row over the context. S' may exceed S; the
            queries attend to tokens beyond S only through the rows.

    Returns:
        Attention weights [B, H, T, S'] of each query over the context.
    """
    L = pack_weights.size(-2)
    through_rows, looked_up = weights[..., :L] @ pack_weights, weights[..., L:]
    return through_rows + F.pad(looked_up, (0, through_rows.size(-1) - looked_up.size(-1)))


def _find_read_tokens(chosen: Tensor, segment: Tensor, L: int) -> Tensor:
    """Return a mask of the tokens in the segments that each query chose.

    A segment is a run of consecutive tokens.

    Shapes: batch size B, H heads, T queries, S tokens, N chosen segments.

    Args:
        chosen: indices [B, H, T, N] of the segments that each query chose.
        segment: segment index [B, S] of each token, or -1 if every query attends to the token.
        L: total number of segments.

    Returns:
        Mask [B, H, T, S], True at tokens that the query attends to.
    """
    # Tracers cannot scatter a Python boolean, so a tensor of ones is scattered.
    is_chosen = torch.zeros(*chosen.shape[:3], L, dtype=torch.bool, device=segment.device)
    is_chosen = is_chosen.scatter(3, chosen, torch.ones_like(chosen, dtype=torch.bool))
    segment = segment[:, None, None, :]
    return is_chosen.gather(3, segment.clamp(min=0, max=L - 1).expand(*chosen.shape[:3], -1)) | (segment < 0)
