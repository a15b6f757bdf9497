"""The tokens of a context by segments: which belong to which row of P, and laid so that a segment is a
slice."""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.places import counted

# The most tokens of a context that a look-up reads whole.
DENSE_LENGTH = 64


class Layout(NamedTuple):
    """How a look-up finds the tokens of a batch of contexts, the same in all layers.

    Attributes:
        position: where the tokens of each segment stand in the context [B, L, W]; None where tokens are read
            as they stand, because a context is short
        empty: True at places of a segment without a token [B, L, W]; of tokens as they stand, at padding [B,
            S]
        segment: see :class:`luna_fairseq.anchored.dense.Tokens`
    """

    position: Optional[Tensor]
    empty: Tensor
    segment: Optional[Tensor] = None


def is_dense(context_padding_mask: Tensor) -> Tensor:
    """True where a context is short [B]; mask: [B, S], True at padding."""
    return (~context_padding_mask).sum(dim=1) <= DENSE_LENGTH


def find_layout(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Layout:
    """The layout for contexts with these masks [B, S] and [B, L], True: left out."""
    if context_padding_mask.size(1) <= DENSE_LENGTH:
        return Layout(None, context_padding_mask)
    short = is_dense(context_padding_mask)
    if not short.any():
        return Layout(*token_positions(context_padding_mask, packed_padding_mask))
    segment = segment_of_tokens(context_padding_mask, packed_padding_mask)
    return Layout(None, context_padding_mask, segment.masked_fill(short[:, None], -1))


class Segments(NamedTuple):
    """The tokens of the context by segments. W is the most that a segment has, S / L rounded up.

    Attributes:
        key: [B, H, L, W, K]
        value: [B, H, L, W, K]
        empty: [B, L, W], True where a segment has fewer tokens
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, L, W]
    """

    key: Tensor
    value: Tensor
    empty: Tensor
    place: Optional[Tensor] = None


def segment_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """The row of P that each token belongs to [B, S], of no meaning at padding. Masks: [B, S], [B, L], True:
    left out."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the tokens of each segment stand in the context [B, L, W], and what of that is empty [B, L,
    W]."""
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    _, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    tokens, rows = tokens[:, None], rows[:, None]
    segment = torch.arange(L + 1, device=tokens.device)
    # The first t with (t + 1/2) L / n at or above the segment; numbers >= 0, as ONNX divides towards 0.
    first = (2 * tokens * segment + rows - 1) // (2 * rows)
    token = first[:, :L, None] + torch.arange((S + L - 1) // L, device=tokens.device)
    empty = token >= torch.minimum(first[:, 1:], tokens)[:, :, None]
    # Real tokens first, each in its order; numbers that differ, as ONNX has no stable sort.
    order = context_padding_mask.long() * S + torch.arange(S, device=tokens.device)
    real_first = order.argsort(dim=1)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view(B, L, -1)
    return position, empty | context_padding_mask.all(dim=1)[:, None, None]


def by_segments(key: Tensor, value: Tensor, position: Tensor, empty: Tensor) -> Segments:
    """Tokens' keys and values [B, H, S, K], laid by segments; see :func:`token_positions`."""
    laid = lay_by_segments(key, position)
    return Segments(laid, laid if value is key else lay_by_segments(value, position), empty)


def lay_by_segments(x: Tensor, position: Tensor) -> Tensor:
    """``x`` [B, H, S, K] by segments [B, H, L, W, K], of the ``position`` [B, L, W]."""
    B, H, S, _ = x.shape
    sentences = S * torch.arange(B, device=x.device)
    token = (position + sentences[:, None, None]).flatten()
    # All heads of a token at once: they lie side by side in a projection.
    laid = x.transpose(1, 2).reshape(B * S, -1).index_select(0, token)
    return laid.view(*position.shape, H, -1).permute(0, 3, 1, 2, 4).contiguous()
