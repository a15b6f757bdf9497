"""Assignment of the context's tokens to segments, and the copy of keys and values by segment.

The packed sequence P has L rows. A context of n tokens is divided into as many equal segments as P has rows,
and row i stands for segment i.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.places import counted
from luna_fairseq.ops.attention import in_a_graph

# A look-up reads all tokens of a context that has at most this many.
DENSE_LENGTH = 64
# Up to this length S, the dense layout costs less than segments for 64 tokens a query. On a CPU, with 4 heads
# of 64 and 64 rows, it took 1.15 times the time of the long contexts alone at 256 tokens, surplus segments
# 2.3 times.
MASKED_DENSE_LENGTH = 256


class Layout(NamedTuple):
    """Arrangement of a batch of contexts in which a look-up finds its tokens, shared by all layers.

    A layout by segments has a ``position``. In a dense layout (``position`` is None) the tokens stay in
    place.

    Attributes:
        position: index in the context of each token of each segment [B, L, W]; None in a dense layout
        padding_mask: [B, L, W], True where a segment has fewer than W tokens; in a dense layout the padding
            mask of the context [B, S]
        segment: dense layout only: segment that a query must choose to read a token [B, S], -1 if every query
            reads the token; None if all tokens are read
        is_short: layout by segments only: mask [B], True for contexts of at most 64 tokens, whose tokens
            stand in order in the first segments and are all read; None if the batch has no such context
    """

    position: Optional[Tensor]
    padding_mask: Tensor
    segment: Optional[Tensor] = None
    is_short: Optional[Tensor] = None


def is_dense(context_padding_mask: Tensor) -> Tensor:
    """Return a mask [B], True for contexts of at most 64 tokens.

    Args:
        context_padding_mask: [B, S], True at padding
    """
    return (~context_padding_mask).sum(dim=1) <= DENSE_LENGTH


def find_layout(
    context_padding_mask: Tensor, packed_padding_mask: Tensor, number: int, for_export: bool = False
) -> Layout:
    """Choose and compute the layout of a batch of contexts.

    If no context can have more than 64 tokens (S <= 64), the layout is dense. Every longer batch is laid out
    by segments, so that the cost of a long context does not depend on its neighbours in the batch. Contexts
    of at most 64 tokens in such a batch are read whole: their tokens fill the first segments in order, and
    every query reads these segments. If that takes more segments than queries choose, a batch of at most 256
    tokens is dense, with a mask.

    Args:
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at masked rows of P
        number: segments that each query chooses
        for_export: use the layout of an exported graph, also outside of one (default: False)
    """
    if for_export or in_a_graph("is_exporting"):
        # The length S is unknown in an exported graph, so a branch on S would hold for the example alone. The
        # dense layout with a segment for each token is right for every length. Its cost is S keys a query.
        return _masked_dense_layout(context_padding_mask, packed_padding_mask)
    S, L = context_padding_mask.size(1), packed_padding_mask.size(1)
    if S <= DENSE_LENGTH:
        return Layout(None, context_padding_mask)
    is_short = is_dense(context_padding_mask)
    has_short = True
    # If the chosen segments hold 64 tokens, short contexts cost nothing. Only otherwise is it worth a look at
    # the mask's values, which a compiled graph and a GPU would have to wait for.
    if segments_read(number, L, tokens_of_segment(S, L), True) > min(number, L):
        if not (in_a_graph() or is_short.any()):
            has_short = False
        elif S <= MASKED_DENSE_LENGTH:
            return _masked_dense_layout(context_padding_mask, packed_padding_mask)
    short = is_short if has_short else None
    return Layout(*token_positions(context_padding_mask, packed_padding_mask, short), is_short=short)


def _masked_dense_layout(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Layout:
    """Return the dense layout in which long contexts are read by the segments that a query chooses."""
    segment = segment_of_tokens(context_padding_mask, packed_padding_mask)
    whole = is_dense(context_padding_mask)[:, None]
    return Layout(None, context_padding_mask, segment.masked_fill(whole, -1))


def tokens_of_segment(S: int, L: int) -> int:
    """Return W, the largest number of tokens that a segment can have: S / L rounded up."""
    return (S + L - 1) // L


def segments_read(number: int, L: int, W: int, has_short: bool) -> int:
    """Return the number of segments that every query reads.

    This is ``number``, or more if the batch has a short context, whose 64 tokens must fit.

    Args:
        number: segments that each query chooses
        L: number of segments
        W: places for tokens in a segment
        has_short: True if the batch may have a context of at most 64 tokens
    """
    return min(L, max(number, tokens_of_segment(DENSE_LENGTH, W) if has_short else 0))


class Segments(NamedTuple):
    """Keys and values of the context's tokens by segment. W is the most that a segment has, S / L rounded up.

    Attributes:
        key: [B, H, L, W, K]
        value: [B, H, L, W, K]
        padding_mask: [B, L, W], True where a segment has fewer than W tokens
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, L, W]
        is_short: mask [B], True for contexts that every query reads whole; see :class:`Layout` (default: none
            is)
    """

    key: Tensor
    value: Tensor
    padding_mask: Tensor
    place: Optional[Tensor] = None
    is_short: Optional[Tensor] = None


def segment_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """Return the segment of each token [B, S], without meaning at padding.

    Args:
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at masked rows of P
    """
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(
    context_padding_mask: Tensor, packed_padding_mask: Tensor, in_order: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Compute where the tokens of each segment stand in the context.

    Five tokens after one of padding, two rows: W = 3, token t belongs to segment ``(2 t + 1) 2 // 10``, so
        that the
    positions are [[1, 2, -], [3, 4, 5]]. With ``in_order`` they are [[1, 2, 3], [4, 5, -]].

    Args:
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at masked rows of P
        in_order: mask [B], True for contexts whose tokens fill one segment after the other, W tokens each,
            without regard to the segment of :func:`segment_of_tokens` (default: none)

    Returns:
        positions [B, L, W], arbitrary without a token, and a mask [B, L, W], True where there is no token
    """
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    W = tokens_of_segment(S, L)
    _, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    tokens, rows = tokens[:, None], rows[:, None]
    segment = torch.arange(L + 1, device=tokens.device)
    # The first t with (t + 1/2) L / n at or above the segment; numbers >= 0, as ONNX divides towards 0.
    first = (2 * tokens * segment + rows - 1) // (2 * rows)
    token = first[:, :L, None] + torch.arange(W, device=tokens.device)
    end = torch.minimum(first[:, 1:], tokens)[:, :, None]
    if in_order is not None:
        in_order = in_order[:, None, None]
        token = torch.where(in_order, torch.arange(L * W, device=token.device).view(L, W), token)
        end = torch.where(in_order, tokens[:, :, None], end)
    # Tokens before padding, each kind in its order. All sort keys differ, as ONNX has no stable sort.
    order = context_padding_mask.long() * S + torch.arange(S, device=tokens.device)
    real_first = order.argsort(dim=1)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view(B, L, -1)
    return position, (token >= end) | context_padding_mask.all(dim=1)[:, None, None]


def by_segments(key: Tensor, value: Tensor, layout: Layout) -> Segments:
    """Copy keys and values of tokens [B, H, S, K] into the segments of a layout.

    If ``key`` and ``value`` are one tensor, the segments share one copy.
    """
    laid = lay_by_segments(key, layout.position)
    values = laid if value is key else lay_by_segments(value, layout.position)
    return Segments(laid, values, layout.padding_mask, is_short=layout.is_short)


def lay_by_segments(x: Tensor, position: Tensor) -> Tensor:
    """Gather ``x`` [B, H, S, K] at the positions [B, L, W]: [B, H, L, W, K]."""
    B, H, S, _ = x.shape
    sentences = S * torch.arange(B, device=x.device)
    token = (position + sentences[:, None, None]).flatten()
    # All heads of a token at once: they lie side by side in a projection.
    laid = x.transpose(1, 2).reshape(B * S, -1).index_select(0, token)
    return laid.view(*position.shape, H, -1).permute(0, 3, 1, 2, 4).contiguous()
