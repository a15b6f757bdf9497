"""Look-up attention, computed as ordinary softmax attention over the packed context and all tokens.

This implementation is used if no context of a batch has more than 64 tokens. Choosing segments would then
save little, and tokens that are not chosen would receive no gradient. An exported graph uses this
implementation for all lengths, and masks the tokens that a query did not choose. So does a batch of up to 256
tokens if its short contexts need more segments than a query chooses.

Shapes: batch size B, H heads of dimension K, T queries, L rows of the packed context, S context tokens.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import choose_segments
from luna_fairseq.modules.memory import ReadWeights
from luna_fairseq.ops.attention import key_mask, naive_attention, softmax_attention


class Tokens(NamedTuple):
    """Keys and values [B, H, S, K] of the S context tokens, in the order of the context.

    The L rows of the packed context are keys, too. In both optional tensors, rows precede tokens.

    Attributes:
        padding_mask: mask [B, L + S] that is True at padded rows and tokens. None if there is no padding.
        segment: segment index [B, L + S] of each row and token. A query attends to a key only if the query
            has chosen the key's segment. All queries attend to keys with index -1. If None, all queries
            attend to all keys.
    """

    key: Tensor
    value: Tensor
    padding_mask: Optional[Tensor] = None
    segment: Optional[Tensor] = None


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tokens: Tokens,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Compute look-up attention as softmax attention to L rows and all S tokens, with a mask.

    The result equals :func:`luna_fairseq.anchored.lookup.naive_lookup_attention` up to rounding. The queries
    q [B, H, T, K] are unscaled. k and v [B, H, L, K] are the keys and values of the rows of the packed
    context. If ``tokens.segment`` is given, a query chooses the ``number`` segments whose rows have the
    largest logits, except segments where ``packed_padding_mask`` [B, L] is True. Two biases are added to the
    logits: ``gate`` [H] for tokens, and ``bias`` [B, H, T, L + S].

    Return the output [B, H, T, K] and the weights [B, H, T, L + S] before dropout, rows first. The weights
    are None if ``need_weights`` is False.
    """
    L, S = k.size(2), tokens.key.size(2)
    total = F.pad(gate.view(1, -1, 1, 1).expand(-1, -1, -1, S), (L, 0))
    if bias is not None:
        total = bias + total
    if tokens.segment is not None:
        logits = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + bias[..., :L]
        chosen = choose_segments(logits, packed_padding_mask, number)
        unread = ~_find_read_keys(chosen, tokens.segment, L)
        total = total.masked_fill(unread, float("-inf"))
    inputs = q, torch.cat([k, tokens.key], dim=2), torch.cat([v, tokens.value], dim=2)
    settings = key_mask(tokens.padding_mask), dropout, total
    if need_weights:
        return naive_attention(*inputs, *settings)
    return softmax_attention(*inputs, *settings), None


def split_dense_weights(weights: Tensor, L: int, S: int) -> ReadWeights:
    """Split attention weights [B, H, T, L + S'] into weights for the L packed rows and for the S tokens.

    The given weights cover only the first S' of the S tokens. Later tokens have a weight of zero.
    """
    rows, tokens = weights[..., :L], weights[..., L:]
    return ReadWeights(rows, F.pad(tokens, (0, S - tokens.size(-1))))


def _find_read_keys(chosen: Tensor, segment: Tensor, L: int) -> Tensor:
    """Return a mask [B, H, T, L + S] that is True at the keys that a query attends to.

    These are the keys whose ``segment`` [B, L + S] is -1 or one of the N segments in ``chosen`` [B, H, T, N].
    """
    # Tracers cannot scatter a Python boolean, so a tensor of ones is scattered.
    is_chosen = torch.zeros(*chosen.shape[:3], L, dtype=torch.bool, device=segment.device)
    is_chosen = is_chosen.scatter(3, chosen, torch.ones_like(chosen, dtype=torch.bool))
    segment = segment[:, None, None, :]
    return is_chosen.gather(3, segment.clamp(min=0, max=L - 1).expand(*chosen.shape[:3], -1)) | (segment < 0)
